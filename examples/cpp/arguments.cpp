#include <CLI/CLI.hpp>
#include <regex>

#include "files.h"
#include "program.h"

namespace codetr {
namespace {

// Returns the number of the GPU, or kCpu.
int parse_device(std::string const& text, bool runs_on_cpu) {
  std::smatch match;
  if (text == "auto" || text == "cuda") return 0;
  if (text == "cpu" && runs_on_cpu) return kCpu;
  if (std::regex_match(text, match, std::regex("(cuda:)?([0-9]{1,4})"))) return std::stoi(match[2]);
  throw UsageError(concat("--device: expected auto, ", runs_on_cpu ? "cpu, " : "",
                          "cuda, cuda:<number> or a GPU's number, got '", text, "'"));
}

void add_options(CLI::App& app, Program const& program, Options& options) {
  const CLI::Range count(1, 999999999), fraction(0.0, 1.0);
  app.option_defaults()->take_last();
  app.add_option("IMAGE", options.pictures, "pictures, or folders of them")->required()->take_all();
  app.add_option(program.model_option, options.model,
                 concat(program.torch ? "TorchScript module" : "TensorRT engine",
                        ", its metadata <stem>.json beside it"))
      ->required();
  app.add_option("--out", options.out,
                 "folder for the pictures and detections.json; made if missing");
  app.add_option("--json", options.json, "the detections, in place of detections.json in --out");
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
  if (program.torch) {
    app.add_option("--torchtrt", options.torchtrt,
                   "libtorchtrt_runtime.so; default: as the loader finds it")
        ->check(CLI::ExistingFile);
  } else {
    app.add_flag("!--no-cuda-graph", options.cuda_graph, "enqueue every run, replay no graph");
  }
  app.add_option_function<std::string>(
      "--device",
      [&](std::string const& text) { options.device = parse_device(text, program.torch); },
      concat("number of the GPU, ", program.torch ? "cpu, " : "", "or auto; default: auto"));
  app.add_option("--benchmark", options.benchmark,
                 "also time so many runs of the network on the first pictures")
      ->check(count);
  app.add_option("--dump", options.dump, "folder for the network's inputs and outputs, .npy files");
  app.add_option("--replay", options.replay,
                 "folder that --dump has written; its outputs replace the network")
      ->check(CLI::ExistingDirectory);
}

}  // namespace

std::optional<Options> parse_arguments(Program const& program, int count, char** arguments) {
  CLI::App app(
      "Detects objects in pictures, prints them, and writes the pictures with their boxes and "
      "detections.json in COCO's form.",
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
  return options;
}

}  // namespace codetr
