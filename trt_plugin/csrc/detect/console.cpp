#include "console.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>

#include "errors.h"

namespace codetr {
namespace {

constexpr size_t kMaxRows = 50;

using Cells = std::vector<std::string>;

std::string format(double number, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, number);
  return text;
}

std::string counted(size_t number, char const* noun) {
  return concat(number, " ", noun, number == 1 ? "" : "s");
}

// Characters, not bytes, of UTF-8.
size_t width(std::string const& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

// The columns from `first_right` on, up to `end_right`, are aligned to the right.
void print_table(std::string const& title, Cells const& headers, std::vector<Cells> rows,
                 size_t first_right, size_t end_right) {
  const size_t hidden = rows.size() > kMaxRows ? rows.size() - kMaxRows : 0;
  rows.resize(rows.size() - hidden);
  rows.insert(rows.begin(), headers);
  std::vector<size_t> widths(headers.size());
  for (Cells const& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::cout << title << '\n';
  for (Cells const& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width(row[i]), ' ');
      const bool right = i >= first_right && i < end_right;
      line += (i == 0 ? "" : "  ") + (right ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
  if (hidden > 0) std::cout << "… and " << hidden << " more rows\n";
}

// "2 cup, 1 spoon": the most frequent first, equals in order of appearance.
std::string summary(std::vector<Row> const& rows) {
  std::vector<std::pair<std::string, size_t>> counts;
  for (Row const& row : rows) {
    const auto known = std::find_if(counts.begin(), counts.end(), [&](auto const& entry) {
      return entry.first == row.category_name;
    });
    if (known != counts.end()) {
      ++known->second;
    } else {
      counts.emplace_back(row.category_name, 1);
    }
  }
  std::stable_sort(counts.begin(), counts.end(),
                   [](auto const& a, auto const& b) { return a.second > b.second; });
  std::string text;
  for (auto const& [name, count] : counts) {
    text += concat(text.empty() ? "" : ", ", count, " ", name);
  }
  return text;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace

void print_results(std::vector<Found> const& pictures,
                   std::vector<std::string> const& class_names) {
  std::vector<Cells> cells;
  if (pictures.size() == 1) {
    for (Row const& row : make_rows(pictures[0].detections, class_names)) {
      cells.push_back({row.category_name, format(row.score, 3), format(row.x, 1), format(row.y, 1),
                       format(row.width, 1), format(row.height, 1)});
    }
    print_table(concat(pictures[0].name, ": ", counted(cells.size(), "detection")),
                {"class", "score", "x", "y", "width", "height"}, cells, 1, 6);
    return;
  }
  size_t total = 0;
  for (Found const& picture : pictures) {
    total += picture.detections.size();
    cells.push_back({picture.name, concat(picture.width, "x", picture.height),
                     std::to_string(picture.detections.size()),
                     summary(make_rows(picture.detections, class_names))});
  }
  print_table(concat(pictures.size(), " pictures: ", counted(total, "detection")),
              {"picture", "size", "found", "classes"}, cells, 1, 3);
}

void print_times(std::vector<Times> const& runs) {
  const size_t first = runs.size() > 1 ? 1 : 0;
  static constexpr std::pair<char const*, double Times::*> kStages[] = {
      {"read", &Times::read},
      {"preprocess", &Times::preprocess},
      {"inference", &Times::inference},
      {"postprocess", &Times::postprocess},
      {"draw", &Times::draw}};
  std::string text;
  for (auto const& [name, stage] : kStages) {
    std::vector<double> values;
    for (size_t i = first; i < runs.size(); ++i) values.push_back(runs[i].*stage);
    text += concat(text.empty() ? "" : ", ", name, " ", format(median(values), 1));
  }
  const std::string note = runs.size() == 1
                               ? "one run, warm-up included"
                               : concat("median; the first run, with the warm-up, took ",
                                        format(runs[0].inference, 1), " for inference");
  std::cout << "ms per picture: " << text << " (" << note << ")\n";
}

void print_benchmark(Benchmark const& benchmark) {
  for (Summary const& one : benchmark.runs) {
    std::cout << "GPU time of " << counted(one.samples, "run") << ", batch " << benchmark.batch
              << " of " << benchmark.height << "x" << benchmark.width << " (" << one.how
              << "): median " << format(one.median, 3) << " ms, p5 " << format(one.p05, 3)
              << ", p95 " << format(one.p95, 3) << '\n';
  }
}

}  // namespace codetr
