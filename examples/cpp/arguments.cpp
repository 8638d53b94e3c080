#include "arguments.h"

#include <CLI/CLI.hpp>
#include <regex>

#include "errors.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;

// Accepts a text that matches a pattern. Else the error reads "expected auto or cuda, got 'gpu'".
CLI::Validator expect(std::string const& what, std::string const& pattern) {
  const auto check = [what, regex = std::regex(pattern)](std::string const& text) {
    return std::regex_match(text, regex) ? "" : concat("expected ", what, ", got '", text, "'");
  };
  return CLI::Validator(check, "");
}

void add_options(CLI::App& app, Program const& program, Options& options) {
  const CLI::Range count(1, 999999999), fraction(0.0, 1.0);
  const CLI::Validator new_folder = CLI::ExistingDirectory | CLI::NonexistentPath;
  app.option_defaults()->take_last();
  app.add_option("IMAGE", options.pictures, "pictures, or folders of them")->required()->take_all();
  app.add_option(program.model_option, options.model, program.model_help)->required();
  app.add_option("--out", options.out,
                 "folder for the pictures and detections.json; made if missing")
      ->check(new_folder);
  app.add_option("--json", options.json, "the detections, in place of detections.json in --out")
      ->check(CLI::ExistingFile | CLI::NonexistentPath);
  app.add_option("--threshold", options.threshold, "least score; default: 0.3")->check(fraction);
  app.add_option("--top", options.top, "at most so many detections a picture, the best")
      ->check(count);
  app.add_option("--nms", options.nms, "soft, hard or none; default: as the model was published")
      ->check(CLI::IsMember({"soft", "hard", "none"}));
  app.add_option("--nms-iou", options.nms_iou,
                 "overlap (IoU) from which boxes of a class suppress each other")
      ->check(fraction);
  app.add_option("--batch", options.batch,
                 "pictures that are padded to one size and run together; default: the network's "
                 "batch, or 1 if its batch or sizes are dynamic")
      ->check(count);
  auto* max_size = app.add_option("--max-size", options.max_size,
                                  "limit of the resized picture's longer side; default: as the "
                                  "model was published. For networks with dynamic sizes")
                       ->check(count);
  auto* height = app.add_option("--height", options.height,
                                "fixed input height; pictures are fitted in and padded. For "
                                "networks with dynamic sizes")
                     ->check(count)
                     ->excludes(max_size);
  auto* width =
      app.add_option("--width", options.width, "fixed input width")->check(count)->needs(height);
  height->needs(width);
  app.add_option("--plugins", options.plugins,
                 "library with TensorRT plugins, may be repeated; default: $MSDA_TRT_PLUGIN, or "
                 "libmsda_trt_plugin.so beside this program")
      ->check(CLI::ExistingFile)
      ->allow_extra_args(false)
      ->take_all();
  if (!program.library_option.empty()) {
    app.add_option(program.library_option, options.library, program.library_help)
        ->check(CLI::ExistingFile);
  }
  const std::string cpu = program.runs_on_cpu ? "cpu, " : "";
  const auto set_device = [&options](std::string const& text) {
    const size_t digit = text.find_first_of("0123456789");
    options.device = text == "cpu" ? kCpu : digit == text.npos ? 0 : std::stoi(text.substr(digit));
  };
  app.add_option_function<std::string>("--device", set_device,
                                       concat("number of the GPU, ", cpu, "or auto; default: auto"))
      ->check(expect(concat("auto, ", cpu, "cuda, cuda:<number> or a GPU's number"),
                     concat("auto|cuda|(cuda:)?[0-9]{1,4}", cpu.empty() ? "" : "|cpu")));
  if (program.has_cuda_graph) {
    app.add_flag_callback(
        "--no-cuda-graph", [&] { options.cuda_graph = false; },
        "enqueue every run, replay no graph");
  }
  app.add_option("--benchmark", options.benchmark,
                 "also time so many runs of the network on the first pictures")
      ->check(count);
  app.add_option("--dump", options.dump, "folder for the network's inputs and outputs, .npy files")
      ->check(new_folder);
  app.add_option("--replay", options.replay,
                 "folder with boxes.npy, scores.npy and labels.npy, which replace the network")
      ->check(CLI::ExistingDirectory);
}

void check_files(Program const& program, Options const& options) {
  const std::string model = concat(program.model_option, " ", options.model.string());
  if (!options.replay && !fs::exists(options.model)) {
    throw UsageError(concat(model, ": no such file"));
  }
  if (!fs::exists(options.metadata())) {
    throw UsageError(concat(model, ": its metadata ", options.metadata().filename().string(),
                            " is not beside it"));
  }
}

}  // namespace

std::optional<Options> parse_arguments(Program const& program, int count, char** arguments) {
  CLI::App app(
      "Detects objects in pictures, prints a table, and writes the pictures with their "
      "boxes and detections.json in COCO's form.",
      program.name);
  app.footer(
      "exit status: 0 all done; 1 a failure, or some of many pictures were left out (each is "
      "named);\n2 wrong arguments or no readable picture");
  app.set_version_flag("--version",
                       concat(program.name, " ", CODETR_VERSION, ", ", program.versions));
  Options options;
  add_options(app, program, options);
  try {
    app.parse(count, arguments);
  } catch (CLI::Success const& done) {
    app.exit(done);
    return std::nullopt;
  } catch (CLI::ParseError const& error) {
    throw UsageError(error.what());
  }
  check_files(program, options);
  return options;
}

}  // namespace codetr
