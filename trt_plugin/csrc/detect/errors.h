// Errors end in one line on stderr: a UsageError with exit status 2, any other with 1.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace codetr {

// Wrong arguments, or inputs that are not what they should be.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// All parts, printed one after the other.
template <class... Parts>
std::string concat(Parts const&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace codetr
