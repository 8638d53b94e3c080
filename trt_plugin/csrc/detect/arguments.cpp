#include "arguments.h"

#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

#include "errors.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;

// What an option is given, and how its errors are worded.
struct Argument {
  std::string option, text;

  UsageError refuse(std::string const& expected) const {
    return UsageError(concat(option, ": expected ", expected, ", got '", text, "'"));
  }

  fs::path path() const {
    if (text.empty()) throw refuse("a path");
    return text;
  }

  fs::path file() const {
    const fs::path result = path();
    if (fs::is_directory(result)) {
      throw UsageError(concat(option, " ", text, ": is a folder, not a file"));
    }
    if (!fs::exists(result)) throw UsageError(concat(option, " ", text, ": no such file"));
    return result;
  }

  // A file to be written.
  fs::path target() const {
    const fs::path result = path();
    if (fs::is_directory(result)) {
      throw UsageError(concat(option, " ", text, ": is a folder, not a file"));
    }
    return result;
  }

  fs::path folder() const {
    const fs::path result = path();
    if (fs::exists(result) && !fs::is_directory(result)) {
      throw UsageError(concat(option, " ", text, ": is a file, not a folder"));
    }
    return result;
  }

  int count() const {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos ||
        std::atoi(text.c_str()) < 1) {
      throw refuse("a whole number above 0");
    }
    return std::atoi(text.c_str());
  }

  double fraction() const {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(number >= 0 && number <= 1)) {
      throw refuse("a number from 0 to 1");
    }
    return number;
  }

  std::string method() const {
    if (text != "soft" && text != "hard" && text != "none") throw refuse("soft, hard or none");
    return text;
  }

  int device(bool cpu_allowed) const {
    if (text == "cpu" && cpu_allowed) return kCpu;
    if (text == "auto" || text == "cuda") return 0;
    const std::string number = text.rfind("cuda:", 0) == 0 ? text.substr(5) : text;
    if (number.empty() || number.size() > 4 ||
        number.find_first_not_of("0123456789") != number.npos) {
      throw refuse(
          concat("auto, ", cpu_allowed ? "cpu, " : "", "cuda, cuda:<number> or a GPU's number"));
    }
    return std::atoi(number.c_str());
  }
};

// What to do with an option's argument; `flags` are options without one.
struct Grammar {
  std::map<std::string, std::function<void(Argument const&)>> options;
  std::map<std::string, bool*> flags;
};

Grammar make_grammar(Program const& program, Options& options) {
  Grammar grammar;
  grammar.flags = {
      {"--help", &options.help}, {"-h", &options.help}, {"--version", &options.version}};
  auto& add = grammar.options;
  add[program.model_option] = [&](Argument const& a) { options.model = a.path(); };
  add["--out"] = [&](Argument const& a) { options.out = a.folder(); };
  add["--json"] = [&](Argument const& a) { options.json = a.target(); };
  add["--threshold"] = [&](Argument const& a) { options.threshold = a.fraction(); };
  add["--top"] = [&](Argument const& a) { options.top = static_cast<size_t>(a.count()); };
  add["--nms"] = [&](Argument const& a) { options.nms = a.method(); };
  add["--nms-iou"] = [&](Argument const& a) { options.nms_iou = a.fraction(); };
  add["--batch"] = [&](Argument const& a) { options.batch = a.count(); };
  add["--max-size"] = [&](Argument const& a) { options.max_size = a.count(); };
  add["--height"] = [&](Argument const& a) { options.height = a.count(); };
  add["--width"] = [&](Argument const& a) { options.width = a.count(); };
  add["--plugins"] = [&](Argument const& a) { options.plugins.push_back(a.file()); };
  add["--device"] = [&](Argument const& a) { options.device = a.device(program.runs_on_cpu); };
  add["--benchmark"] = [&](Argument const& a) { options.benchmark = a.count(); };
  add["--dump"] = [&](Argument const& a) { options.dump = a.folder(); };
  add["--replay"] = [&](Argument const& a) { options.replay = a.folder(); };
  if (program.library_option != nullptr) {
    add[program.library_option] = [&](Argument const& a) { options.library = a.file(); };
  }
  return grammar;
}

void check(Program const& program, Options const& options) {
  if (options.model.empty()) {
    throw UsageError(concat(program.model_option, ": needed, ", program.model_help));
  }
  if (options.pictures.empty()) throw UsageError("IMAGE: expected at least one picture, got none");
  if (options.height.has_value() != options.width.has_value()) {
    throw UsageError("--height and --width: give both or neither");
  }
  if (options.height && options.max_size) {
    throw UsageError("--max-size: does not go with --height and --width");
  }
  // A replay asks for the metadata alone.
  if (!options.replay) static_cast<void>(Argument{program.model_option, options.model}.file());
  if (!fs::exists(options.metadata())) {
    throw UsageError(concat(program.model_option, " ", options.model.string(), ": its metadata ",
                            options.metadata().filename().string(), " is not beside it"));
  }
}

}  // namespace

fs::path Options::metadata() const { return fs::path(model).replace_extension(".json"); }

Options parse_arguments(Program const& program, std::vector<std::string> const& arguments) {
  Options options;
  const Grammar grammar = make_grammar(program, options);
  bool no_cuda_graph = false, only_pictures = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string const& argument = arguments[i];
    if (only_pictures || argument.size() < 2 || argument[0] != '-') {
      options.pictures.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto flag = grammar.flags.find(argument);
    const auto option = grammar.options.find(name);
    if (argument == "--") {
      only_pictures = true;
    } else if (flag != grammar.flags.end()) {
      *flag->second = true;
    } else if (argument == "--no-cuda-graph" && program.has_cuda_graph) {
      no_cuda_graph = true;
    } else if (option == grammar.options.end()) {
      throw UsageError(
          concat(argument, ": there is no such option (see ", program.name, " --help)"));
    } else if (equals != argument.npos) {
      option->second({name, argument.substr(equals + 1)});
    } else if (i + 1 == arguments.size()) {
      throw UsageError(concat(name, ": expected an argument, got none"));
    } else {
      option->second({name, arguments[++i]});
    }
  }
  options.cuda_graph = !no_cuda_graph;
  if (!options.help && !options.version) check(program, options);
  return options;
}

std::string usage(Program const& program) {
  const auto line = [](std::string option, char const* meaning) {
    option.resize(std::max<size_t>(option.size() + 1, 21), ' ');
    return concat("  ", option, meaning, "\n");
  };
  std::string text =
      concat("usage: ", program.name, " ", program.model_option, " FILE [options] IMAGE...\n\n",
             "Detects objects in JPEG and PNG pictures, prints a table, and writes the pictures "
             "with their\n"
             "boxes and detections.json in COCO's form.\n\n",
             line(concat(program.model_option, " FILE"), program.model_help));
  text += line("--out DIR", "folder for the pictures and detections.json; made if missing");
  text += line("--json FILE", "the detections, in place of DIR/detections.json");
  text += line("--threshold S", "least score; default: 0.3");
  text += line("--top K", "at most K detections a picture, the best");
  text += line("--nms METHOD", "soft, hard or none; default: as the model was published");
  text += line("--nms-iou IOU", "overlap from which boxes of a class suppress each other");
  text += line("--batch N",
               "pictures that are padded to one size and run together; default: as many as");
  text += line("", "the network takes, 1 if its batch or sizes are dynamic");
  text += line("--max-size PX",
               "limit of the resized picture's longer side; default: as the model was");
  text += line("", "published. Fixed in a file exported without --dynamic-size, as are:");
  text += line("--height PX", "fixed input height; pictures are fitted in and padded");
  text += line("--width PX", "fixed input width");
  text += line("--plugins FILE", "library with TensorRT plugins, may be repeated; default:");
  text += line("", "$MSDA_TRT_PLUGIN, or libmsda_trt_plugin.so beside this program");
  if (program.library_option != nullptr) {
    text += line(concat(program.library_option, " FILE"), program.library_help);
  }
  text += line("--device N", program.runs_on_cpu ? "number of the GPU, or cpu; default: 0"
                                                 : "number of the GPU; default: 0");
  if (program.has_cuda_graph) {
    text += line("--no-cuda-graph", "enqueue every run, replay no graph");
  }
  text +=
      line("--benchmark N", "also time N runs of the network on the first pictures, at their size");
  text += line("--dump DIR", "also write what goes into the network and comes out, as .npy files");
  text += line("--replay DIR", "take boxes, scores and labels from .npy files there; needs no GPU");
  text += line("--help, --version", "");
  return text +
         "\nexit status: 0 all done; 1 a failure, or some of many pictures were left out (each is "
         "named);\n2 wrong arguments or no readable picture\n";
}

}  // namespace codetr
