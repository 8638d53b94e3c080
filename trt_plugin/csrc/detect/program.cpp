#include "program.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include "console.h"
#include "draw.h"
#include "errors.h"
#include "files.h"
#include "image.h"
#include "pictures.h"
#include "replay.h"
#include "results.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;

// Milliseconds since the last call, or since it was made.
class Clock {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> passed = now - last_;
    last_ = now;
    return passed.count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string one_line(std::string const& message) {
  std::string line;
  for (char letter : printable(message)) line += letter == '\n' || letter == '\r' ? ' ' : letter;
  return line;
}

std::string is_fixed(char const* option, Program const& program) {
  return concat(option, ": is fixed in the file that ", program.model_option,
                " gives, leave it out");
}

Nms choose_nms(Program const& program, Options const& options, Metadata const& metadata) {
  Nms nms = metadata.nms;
  if (metadata.nms_in_graph) {
    if (options.nms) throw UsageError(is_fixed("--nms", program));
    if (options.nms_iou) throw UsageError(is_fixed("--nms-iou", program));
    nms.method = NmsMethod::kNone;
    nms.max_per_img.reset();
  }
  if (options.nms) {
    nms.method = *options.nms == "soft"   ? NmsMethod::kSoft
                 : *options.nms == "hard" ? NmsMethod::kHard
                                          : NmsMethod::kNone;
  }
  if (options.nms_iou) nms.iou_threshold = *options.nms_iou;
  return nms;
}

// The sizes of the input, in which those that the options choose are fixed or limited.
InputSizes choose_sizes(Program const& program, Options const& options, InputSizes sizes) {
  const bool resizable = sizes.resizable();
  if (options.max_size) {
    if (!resizable) throw UsageError(is_fixed("--max-size", program));
    const int most = *options.max_size;
    const auto [longer, shorter] = sizes.scale.value_or(std::pair{most, most});
    sizes.scale = {std::min(longer, most), std::min(shorter, most)};
  }
  const auto fix = [&](char const* option, std::optional<int> given, Range& range) {
    if (!given) return;
    if (!resizable) throw UsageError(is_fixed(option, program));
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

// Detects in one set of pictures after the other and keeps what was found.
class Run {
 public:
  Run(Program const& program, Options const& options)
      : program_(program),
        options_(options),
        metadata_(Metadata::load(options.metadata())),
        nms_(choose_nms(program, options, metadata_)),
        sizes_(choose_sizes(program, options, metadata_.sizes)),
        pictures_(find_pictures(options.pictures)) {
    if (options.out) check_outputs(*options.out);
    for (Picture const& picture : pictures_) {
      try {
        check_image(picture.path);
        readable_.push_back(picture);
      } catch (ImageError const& error) {
        leave_out(error);
      }
    }
    if (readable_.empty()) throw nothing("read");
  }

  int operator()(OpenNetwork const& open) {
    const std::unique_ptr<Network> network =
        options_.replay ? replay(*options_.replay) : open(options_, metadata_);
    const size_t together = pictures_together();
    for (size_t start = 0; start < readable_.size(); start += together) {
      detect(*network, start, std::min(start + together, readable_.size()));
    }
    if (found_.empty()) throw nothing("processed");
    if (options_.benchmark > 0) measure(*network);
    if (options_.dump) dump_.save(*options_.dump);
    write_json();
    print_results(found_, metadata_.class_names);
    print_times(times_);
    print_benchmark(benchmark_);
    print_written();
    std::cout.flush();
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

  // A single picture that cannot be read ends the run, one of many does not.
  void leave_out(ImageError const& error) {
    if (pictures_.size() == 1) throw UsageError(error.what());
    ++failures_;
    std::cerr << program_.name << ": warning: " << one_line(error.what()) << "; left out"
              << std::endl;
  }

  void check_outputs(fs::path const& out) const {
    for (Picture const& output : pictures_) {
      std::error_code none;
      const fs::path target = fs::canonical(out / output.output_name, none);
      for (Picture const& input : pictures_) {
        if (none || target != fs::canonical(input.path)) continue;
        throw UsageError(concat("--out ", out.string(), ": ", target.string(),
                                " would replace an input, choose another folder"));
      }
    }
  }

  // How many pictures are padded to one size. Where that depends on the pictures, each by itself as
  // in Python.
  size_t pictures_together() const {
    InputSizes const& sizes = metadata_.sizes;
    return static_cast<size_t>(options_.batch.value_or(sizes.dynamic() ? 1 : sizes.batch.opt));
  }

  void detect(Network& network, size_t start, size_t end) {
    Clock clock;
    Times times{};
    std::vector<Image> images;
    std::vector<Picture const*> names;
    for (size_t i = start; i < end; ++i) {
      try {
        images.push_back(load_image(readable_[i].path));
        names.push_back(&readable_[i]);
      } catch (ImageError const& error) {
        leave_out(error);
      }
    }
    if (images.empty()) return;
    times.read = clock.lap();

    const auto most = static_cast<size_t>(metadata_.sizes.batch.max);
    for (size_t first = 0; first < images.size(); first += most) {
      const size_t last = std::min(first + most, images.size());
      Batch batch = make_batch(images, first, last);
      times.preprocess += clock.lap();

      const Output output = network.run(batch);
      times.inference += clock.lap();
      if (options_.dump) dump_.add(batch, output);
      clock.lap();

      for (size_t i = first; i < last; ++i) {
        found_.push_back({names[i]->name, images[i].height, images[i].width,
                          detections(batch, output, i - first, images[i])});
        static_cast<void>(
            make_rows(found_.back().detections, metadata_.class_names));  // checks labels
      }
      times.postprocess += clock.lap();
      if (!first_batch_) first_batch_ = std::make_unique<Batch>(std::move(batch));
    }

    for (size_t i = 0; options_.out && i < images.size(); ++i) {
      Detections const& drawn = found_[found_.size() - images.size() + i].detections;
      const fs::path path = *options_.out / names[i]->output_name;
      save_jpeg(draw_detections(std::move(images[i]), drawn, metadata_.class_names), path);
      drawn_.push_back(path);
    }
    times.draw = clock.lap();
    const auto count = static_cast<double>(names.size());
    for (double Times::* stage :
         {&Times::read, &Times::preprocess, &Times::inference, &Times::postprocess, &Times::draw}) {
      times.*stage /= count;
    }
    times_.push_back(times);
  }

  // The input of one run with some of the pictures, padded to what all of them need.
  Batch make_batch(std::vector<Image> const& images, size_t first, size_t last) const {
    std::vector<std::pair<int, int>> resized;
    for (Image const& image : images) {
      resized.push_back(sizes_.target_size(image.height, image.width));
    }
    const auto [height, width] = sizes_.padded_size(resized);
    Batch batch(std::max(sizes_.batch.min, static_cast<int>(last - first)), height, width);
    for (size_t i = first; i < last; ++i) {
      batch.add(images[i], resized[i], metadata_.normalisation);
    }
    batch.fill();
    return batch;
  }

  void measure(Network& network) {
    benchmark_ = {first_batch_->count, first_batch_->height, first_batch_->width, {}};
    for (Samples const& samples : network.time(*first_batch_, options_.benchmark)) {
      benchmark_.runs.push_back(summarise(samples.how, samples.milliseconds));
    }
  }

  Detections detections(Batch const& batch, Output const& output, size_t index,
                        Image const& image) const {
    const size_t first = index * output.rows;
    const Sizes sizes{image.height, image.width, batch.image_shapes[2 * index],
                      batch.image_shapes[2 * index + 1]};
    Detections rows = restore(output.boxes.data() + 4 * first, output.scores.data() + first,
                              output.labels.data() + first, output.rows, sizes);
    return select(apply_nms(rows, nms_), options_.threshold, options_.top);
  }

  std::optional<fs::path> document() const {
    if (options_.json) return options_.json;
    if (options_.out) return *options_.out / "detections.json";
    return std::nullopt;
  }

  void write_json() const {
    const auto path = document();
    if (!path) return;
    const Info info{program_.name,    metadata_.description, options_.threshold, options_.nms,
                    options_.nms_iou, options_.top,          benchmark_};
    write_document(*path, found_, metadata_.class_names, info);
  }

  void print_written() const {
    std::string text;
    if (drawn_.size() == 1) text = drawn_[0].string();
    if (drawn_.size() > 1) text = concat(drawn_.size(), " pictures");
    for (auto const& path : {document(), options_.dump}) {
      if (path) text += concat(text.empty() ? "" : " and ", path->string());
    }
    if (!text.empty()) std::cout << "wrote " << printable(text) << '\n';
  }

  Program const& program_;
  Options const& options_;
  Metadata metadata_;
  Nms nms_;
  InputSizes sizes_;  // `metadata_` has those of the file
  std::vector<Picture> pictures_, readable_;
  std::vector<Found> found_;
  std::vector<Times> times_;
  Benchmark benchmark_;
  std::vector<fs::path> drawn_;
  std::unique_ptr<Batch> first_batch_;
  Dump dump_;
  size_t failures_ = 0;
};

int run(Program const& program, std::vector<std::string> const& arguments, OpenNetwork const& open,
        std::string const& versions) {
  const Options options = parse_arguments(program, arguments);
  if (options.help) {
    std::cout << usage(program);
    return 0;
  }
  if (options.version) {
    std::cout << program.name << " " << CODETR_VERSION << ", " << versions << '\n';
    return 0;
  }
  return Run(program, options)(open);
}

}  // namespace

int run_program(Program const& program, int count, char** arguments, OpenNetwork const& open,
                std::string const& versions) {
  const auto complain = [&](char const* message) {
    std::cerr << program.name << ": error: " << one_line(message) << std::endl;
  };
  try {
    return run(program, {arguments + 1, arguments + count}, open, versions);
  } catch (UsageError const& error) {
    complain(error.what());
    return 2;
  } catch (std::exception const& error) {
    complain(error.what());
    return 1;
  }
}

}  // namespace codetr
