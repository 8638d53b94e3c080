#include "pictures.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;

// The folder above both.
fs::path shared_folder(fs::path const& first, fs::path const& second) {
  fs::path shared;
  auto a = first.begin(), b = second.begin();
  for (; a != first.end() && b != second.end() && *a == *b; ++a, ++b) shared /= *a;
  return shared;
}

std::string lower(std::string text) {
  const auto to_lower = [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  };
  std::transform(text.begin(), text.end(), text.begin(), to_lower);
  return text;
}

// <stem>.jpg, or <stem>_2.jpg, ... where that is taken; some file systems do not tell A from a.
std::string free_name(std::string const& stem, std::set<std::string>& taken) {
  for (int number = 1;; ++number) {
    std::string name = number == 1 ? stem + ".jpg" : concat(stem, "_", number, ".jpg");
    if (taken.insert(lower(name)).second) return name;
  }
}

}  // namespace

std::vector<Picture> find_pictures(std::vector<std::string> const& arguments) {
  std::vector<Picture> pictures;
  std::set<fs::path> known;
  std::vector<fs::path> absolute;
  fs::path shared;
  for (std::string const& argument : arguments) {
    const fs::path path = argument;
    if (argument.empty()) throw UsageError("IMAGE: expected a path, got ''");
    if (fs::is_directory(path)) throw UsageError(concat(argument, ": is a folder, not an image"));
    if (!fs::exists(path)) throw UsageError(concat(argument, ": no such file"));
    if (!known.insert(fs::canonical(path)).second) continue;
    absolute.push_back(fs::absolute(path).lexically_normal());
    const fs::path folder = absolute.back().parent_path();
    shared = pictures.empty() ? folder : shared_folder(shared, folder);
    pictures.push_back({path, {}, {}});
  }
  std::set<std::string> taken;
  for (size_t i = 0; i < pictures.size(); ++i) {
    pictures[i].name = printable(absolute[i].lexically_relative(shared).generic_string());
    pictures[i].output_name = free_name(pictures[i].path.stem().string(), taken);
  }
  return pictures;
}

std::vector<int64_t> image_ids(std::vector<std::string> const& names) {
  std::vector<int64_t> ids, counted;
  std::set<int64_t> different;
  for (std::string const& name : names) {
    counted.push_back(static_cast<int64_t>(counted.size()) + 1);
    const std::string stem = fs::path(name).stem().string();
    const bool numeric = !stem.empty() && stem.size() <= std::numeric_limits<int64_t>::digits10 &&
                         stem.find_first_not_of("0123456789") == stem.npos;
    if (!numeric) continue;
    ids.push_back(std::stoll(stem));
    different.insert(ids.back());
  }
  return different.size() == names.size() ? ids : counted;
}

}  // namespace codetr
