#include "program.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <opencv2/core/utils/logger.hpp>

#include "draw.h"
#include "errors.h"
#include "pictures.h"
#include "postprocess.h"
#include "recorded.h"
#include "results.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;

class Clock {
 public:
  // Returns the milliseconds since the last call, or since the construction.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> passed = now - last_;
    last_ = now;
    return passed.count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string one_line(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message;
}

UsageError is_fixed(char const* option, Program const& program) {
  return UsageError(
      concat(option, ": is fixed in the file that ", program.model_option, " gives, leave it out"));
}

Nms choose_nms(Program const& program, Options const& options, Metadata const& metadata) {
  Nms nms = metadata.nms;
  if (metadata.nms_in_graph) {
    if (options.nms) throw is_fixed("--nms", program);
    if (options.nms_iou) throw is_fixed("--nms-iou", program);
    nms.method = NmsMethod::kNone;
    nms.max_per_img.reset();
  }
  if (options.nms == "soft") nms.method = NmsMethod::kSoft;
  if (options.nms == "hard") nms.method = NmsMethod::kHard;
  if (options.nms == "none") nms.method = NmsMethod::kNone;
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
    range = {*given, *given, *given};
    sizes.scale.reset();
  };
  fix("--height", options.height, sizes.height);
  fix("--width", options.width, sizes.width);
  return sizes;
}

// Runs the network on one set of pictures after the other and collects the results.
class Run {
 public:
  Run(Program const& program, Options const& options)
      : program_(program),
        options_(options),
        metadata_(Metadata::load(options.metadata())),
        nms_(choose_nms(program, options, metadata_)),
        sizes_(choose_sizes(program, options, metadata_.sizes)),
        pictures_(find_pictures(options.pictures)) {
    check_outputs();
    for (Picture const& picture : pictures_) {
      try {
        check_picture(picture.path);
        readable_.push_back(picture);
      } catch (PictureError const& error) {
        leave_out(error);
      }
    }
    if (readable_.empty()) throw nothing("read");
  }

  int operator()(OpenNetwork const& open) {
    const std::unique_ptr<Network> network =
        options_.replay ? replay(*options_.replay) : open(options_, metadata_);
    // With dynamic shapes the input depends on the pictures: each is alone by default, as in
    // Python.
    const bool dynamic = metadata_.sizes.batch.dynamic() || metadata_.sizes.resizable();
    const int usual = dynamic ? 1 : metadata_.sizes.batch.opt;
    const auto together = static_cast<size_t>(options_.batch.value_or(usual));
    for (size_t start = 0; start < readable_.size(); start += together) {
      detect(*network, start, std::min(start + together, readable_.size()));
    }
    if (results_.pictures.empty()) throw nothing("processed");
    if (options_.benchmark > 0) {
      results_.benchmark = {first_->count, first_->height, first_->width,
                            network->time(*first_, options_.benchmark)};
    }
    write();
    if (!std::cout) return 1;
    if (failures_ == 0) return 0;
    std::cerr << program_.name << ": error: " << failures_ << " of " << pictures_.size()
              << " pictures could not be processed, see the warnings above" << std::endl;
    return 1;
  }

 private:
  UsageError nothing(char const* what) const {
    return UsageError(concat("none of the ", pictures_.size(), " pictures could be ", what));
  }

  // Goes on without a picture that cannot be read, unless it is the only one.
  void leave_out(PictureError const& error) {
    if (pictures_.size() == 1) throw UsageError(error.what());
    ++failures_;
    std::cerr << program_.name << ": warning: " << one_line(error.what()) << "; left out"
              << std::endl;
  }

  void check_outputs() const {
    if (!options_.out) return;
    for (Picture const& output : pictures_) {
      const fs::path target = *options_.out / output.output_name;
      for (Picture const& input : pictures_) {
        if (!fs::exists(target) || !fs::equivalent(target, input.path)) continue;
        throw UsageError(concat("--out ", options_.out->string(), ": ", target.string(),
                                " would replace an input, choose another folder"));
      }
    }
  }

  void detect(Network& network, size_t start, size_t end) {
    Clock clock;
    Times times;
    std::vector<cv::Mat> images;
    std::vector<Picture> read;
    for (size_t i = start; i < end; ++i) {
      try {
        images.push_back(load_picture(readable_[i].path));
        read.push_back(readable_[i]);
      } catch (PictureError const& error) {
        leave_out(error);
      }
    }
    if (images.empty()) return;
    times["read"] = clock.lap();

    std::vector<std::pair<int, int>> resized;
    for (cv::Mat const& image : images) {
      resized.push_back(sizes_.target_size(image.rows, image.cols));
    }
    const auto [height, width] = sizes_.padded_size(resized);
    const auto most = static_cast<size_t>(sizes_.batch.max);
    for (size_t first = 0; first < images.size(); first += most) {
      const size_t last = std::min(first + most, images.size());
      Batch batch(std::max(sizes_.batch.min, static_cast<int>(last - first)), height, width);
      for (size_t i = first; i < last; ++i) {
        batch.add(images[i], resized[i], metadata_.normalisation);
      }
      batch.fill();
      times["preprocess"] += clock.lap();

      const Output output = network.run(batch);
      times["inference"] += clock.lap();
      if (options_.dump) dump_.add(batch, output);
      clock.lap();

      for (size_t i = first; i < last; ++i) {
        results_.pictures.push_back({read[i].name, images[i].rows, images[i].cols,
                                     detections(output, i - first, images[i], resized[i])});
      }
      times["postprocess"] += clock.lap();
      if (!first_) first_ = std::move(batch);
    }

    for (size_t i = 0; options_.out && i < images.size(); ++i) {
      auto const& found = results_.pictures[results_.pictures.size() - images.size() + i];
      draw_detections(images[i], found.detections, metadata_.class_names);
      drawn_.push_back((*options_.out / read[i].output_name).string());
      save_jpeg(images[i], drawn_.back());
    }
    times["draw"] = clock.lap();
    for (auto& stage : times) stage.second /= static_cast<double>(images.size());
    results_.times.push_back(times);
  }

  Detections detections(Output const& output, size_t index, cv::Mat const& image,
                        std::pair<int, int> resized) const {
    const size_t first = index * output.rows;
    const Detections rows =
        restore(output.boxes.data() + 4 * first, output.scores.data() + first,
                output.labels.data() + first, output.rows, {image.rows, image.cols}, resized);
    Detections found = select(apply_nms(rows, nms_), options_.threshold, options_.top);
    for (Detection const& one : found) {
      if (one.label < static_cast<int64_t>(metadata_.class_names.size())) continue;
      throw std::runtime_error(concat("labels: expected numbers below ",
                                      metadata_.class_names.size(),
                                      ", the number of class names, got ", one.label));
    }
    return found;
  }

  void write() const {
    std::vector<std::string> written;
    if (!drawn_.empty()) {
      written.push_back(drawn_.size() == 1 ? drawn_[0] : concat(drawn_.size(), " pictures"));
    }
    std::optional<fs::path> document = options_.json;
    if (!document && options_.out) document = *options_.out / "detections.json";
    if (document) {
      write_document(*document, results_, metadata_.class_names, options_, program_.name,
                     metadata_.description);
      written.push_back(document->string());
    }
    if (options_.dump) {
      dump_.save(*options_.dump);
      written.push_back(options_.dump->string());
    }
    print_results(results_, metadata_.class_names);
    for (size_t i = 0; i < written.size(); ++i) {
      std::cout << (i == 0 ? "wrote " : " and ") << written[i];
    }
    if (!written.empty()) std::cout << '\n';
    std::cout.flush();
  }

  Program const& program_;
  Options const& options_;
  Metadata metadata_;
  Nms nms_;
  InputSizes sizes_;  // `metadata_` has those of the file
  std::vector<Picture> pictures_, readable_;
  Results results_;
  std::optional<Batch> first_;  // the first run's input
  std::vector<std::string> drawn_;
  Dump dump_;
  size_t failures_ = 0;
};

}  // namespace

int run_program(Program const& program, int count, char** arguments, OpenNetwork const& open) {
  try {
    // OpenCV's decoders report a damaged file there, which this program's error names, too.
    cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_SILENT);
    const std::optional<Options> options = parse_arguments(program, count, arguments);
    return options ? Run(program, *options)(open) : 0;
  } catch (UsageError const& error) {
    std::cerr << program.name << ": error: " << one_line(error.what()) << std::endl;
    return 2;
  } catch (std::exception const& error) {
    std::cerr << program.name << ": error: " << one_line(error.what()) << std::endl;
    return 1;
  }
}

}  // namespace codetr
