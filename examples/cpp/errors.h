// Errors end the program with one line on stderr.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace codetr {

// A wrong argument or input file; exit status 2. Any other exception gives 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns all parts, printed one after the other.
template <class... Parts>
std::string concat(Parts const&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace codetr
