#include "program.h"

#include <algorithm>
#include <iostream>
#include <opencv2/core/utils/logger.hpp>

#include "draw.h"
#include "files.h"
#include "pictures.h"
#include "recorded.h"
#include "results.h"

namespace codetr {
namespace {

UsageError is_fixed(char const* option, Program const& program) {
  return UsageError(
      concat(option, ": is fixed in the file that ", program.model_option, " gives, leave it out"));
}

Nms choose_nms(Program const& program, Options const& options, Metadata const& metadata) {
  Nms nms = metadata.nms;
  if (metadata.nms_in_graph) {
    if (options.nms) throw is_fixed("--nms", program);
    if (options.nms_iou) throw is_fixed("--nms-iou", program);
    nms.method = "none";
    nms.max_per_img.reset();
  }
  nms.method = options.nms.value_or(nms.method);
  nms.iou_threshold = options.nms_iou.value_or(nms.iou_threshold);
  return nms;
}

// Returns the file's sizes, fixed or limited as the options say.
InputSizes choose_sizes(Program const& program, Options const& options, InputSizes sizes) {
  const bool resizable = sizes.resizable();
  if (options.max_size) {
    if (!resizable) throw is_fixed("--max-size", program);
    const int most = *options.max_size;
    const auto [longer, shorter] = sizes.scale.value_or(std::pair{most, most});
    sizes.scale = {std::min(longer, most), std::min(shorter, most)};
  }
  const auto fix = [&](char const* option, std::optional<int> given, SizeRange& range) {
    if (!given) return;
    if (!resizable) throw is_fixed(option, program);
    if (*given % kSizeDivisor != 0 || *given < range.min || *given > range.max) {
      throw UsageError(concat(option, ": expected a multiple of ", kSizeDivisor, " from ",
                              range.min, " to ", range.max, ", the range of ",
                              options.model.string(), ", got ", *given));
    }
    range = {*given, *given};
    sizes.scale.reset();
  };
  fix("--height", options.height, sizes.height);
  fix("--width", options.width, sizes.width);
  return sizes;
}

// Throws UsageError if an annotated picture would replace one of the pictures.
void check_outputs(fs::path const& out, std::vector<Picture> const& pictures) {
  for (Picture const& output : pictures) {
    const fs::path target = out / output.output_name;
    for (Picture const& input : pictures) {
      if (!fs::exists(target) || !fs::equivalent(target, input.path)) continue;
      throw UsageError(concat("--out ", out.string(), ": ", target.string(),
                              " would replace an input, choose another folder"));
    }
  }
}

// Runs the network on one set of pictures after the other and collects the results.
class Run {
 public:
  Run(Program const& program, Options const& options)
      : program_(program),
        options_(options),
        metadata_(Metadata::load(fs::path(options.model).replace_extension(".json"))),
        nms_(choose_nms(program, options, metadata_)),
        sizes_(choose_sizes(program, options, metadata_.sizes)),
        pictures_(find_pictures(options.pictures)) {
    if (options.out) check_outputs(*options.out, pictures_);
  }

  int operator()(OpenNetwork const& open) {
    const std::unique_ptr<Network> network =
        options_.replay ? std::make_unique<Replay>(*options_.replay) : open(options_, metadata_);
    // With dynamic shapes the input depends on the pictures: by default each is alone, as in
    // Python.
    const bool dynamic = metadata_.sizes.batch.dynamic() || metadata_.sizes.resizable();
    const int usual = dynamic ? 1 : metadata_.sizes.batch.max;
    const auto together = static_cast<size_t>(options_.batch.value_or(usual));
    for (size_t start = 0; start < pictures_.size(); start += together) {
      detect(*network, start, std::min(start + together, pictures_.size()));
    }
    const size_t left_out = pictures_.size() - results_.pictures.size();
    if (left_out == pictures_.size()) throw UsageError("none of the pictures could be read");
    if (options_.benchmark > 0) {
      results_.timed_shape = {first_->count, 3, first_->height, first_->width};
      results_.timed = network->time(*first_, options_.benchmark);
    }
    write();
    return left_out == 0 ? 0 : 1;
  }

 private:
  // Goes on without a picture that cannot be read, unless it is the only one.
  void leave_out(Picture const& picture) const {
    const std::string message =
        concat(picture.path.string(), ": cannot be read: no picture, or damaged");
    if (pictures_.size() == 1) throw UsageError(message);
    std::cerr << program_.name << ": warning: " << message << "; left out" << std::endl;
  }

  void detect(Network& network, size_t start, size_t end) {
    struct Loaded {
      Picture const& file;
      cv::Mat image;
      cv::Size resized;
    };
    std::vector<Loaded> loaded;
    cv::Size largest;
    for (size_t i = start; i < end; ++i) {
      const cv::Mat image = load_picture(pictures_[i].path);
      if (image.empty()) {
        leave_out(pictures_[i]);
        continue;
      }
      const cv::Size resized = sizes_.target_size(image.size());
      loaded.push_back({pictures_[i], image, resized});
      largest = {std::max(largest.width, resized.width), std::max(largest.height, resized.height)};
    }

    const auto most = static_cast<size_t>(sizes_.batch.max);
    for (size_t first = 0; first < loaded.size(); first += most) {
      const size_t last = std::min(first + most, loaded.size());
      Batch batch(std::max(sizes_.batch.min, static_cast<int>(last - first)),
                  sizes_.padded_size(largest), metadata_.normalisation);
      for (int n = 0; n < batch.count; ++n) {  // rows after the last picture repeat it
        Loaded const& one = loaded[std::min(first + n, last - 1)];
        batch.set(n, one.image, one.resized);
      }

      const Output output = network.run(batch);
      if (options_.dump) dump_run(*options_.dump, runs_, batch, output);
      ++runs_;

      for (size_t i = first; i < last; ++i) {
        auto& [file, image, resized] = loaded[i];
        const Detections all = restore(output, i - first, image.size(), resized);
        Found found{file.name, image.size(),
                    select(apply_nms(all, nms_), options_.threshold, options_.top)};
        if (options_.out) {
          draw_detections(image, found.detections, metadata_.class_names);
          save_jpeg(image, *options_.out / file.output_name);
        }
        results_.pictures.push_back(std::move(found));
      }
      if (!first_) first_ = std::move(batch);
    }
  }

  void write() const {
    std::optional<fs::path> document = options_.json;
    if (!document && options_.out) document = *options_.out / "detections.json";
    if (document) write_document(*document, results_, metadata_, options_, program_.name);
    print_results(results_, metadata_.class_names);
    for (auto const& path : {options_.out, document, options_.dump}) {
      if (path) std::cout << "wrote " << path->string() << '\n';
    }
  }

  Program const& program_;
  Options const& options_;
  Metadata metadata_;
  Nms nms_;
  InputSizes sizes_;  // `metadata_` has those of the file
  std::vector<Picture> pictures_;
  Results results_;
  std::optional<Batch> first_;  // the first run's input
  size_t runs_ = 0;
};

int fail(Program const& program, std::string message, int status) {
  std::ranges::replace(message, '\n', ' ');
  std::cerr << program.name << ": error: " << message << std::endl;
  return status;
}

}  // namespace

int run_program(Program const& program, int count, char** arguments, OpenNetwork const& open) {
  try {
    // OpenCV's decoders report a damaged file there, which this program's error names, too.
    cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_SILENT);
    const std::optional<Options> options = parse_arguments(program, count, arguments);
    return options ? Run(program, *options)(open) : 0;
  } catch (UsageError const& error) {
    return fail(program, error.what(), 2);
  } catch (std::exception const& error) {
    return fail(program, error.what(), 1);
  }
}

}  // namespace codetr
