// Words for messages.
#pragma once

#include <string>
#include <vector>

#include "emulator.h"

namespace emulator {

const char* name(Operation operation);

// "3", or "(3, 0, 1)" where the size has more than one dimension.
std::string coordinates(unsigned x, unsigned y, unsigned z, const dim3& size);

// "0, 5-31", of ascending numbers.
std::string ranges(const std::vector<int>& numbers);

// The demangled name of a function that the library exports, without its arguments.
std::string function_name(const void* function);

}  // namespace emulator
