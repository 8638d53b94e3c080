// The run of a program, independent of what runs the network.
#pragma once

#include <functional>
#include <memory>

#include "arguments.h"
#include "metadata.h"
#include "network.h"

namespace codetr {

using OpenNetwork = std::function<std::unique_ptr<Network>(Options const&, Metadata const&)>;

// Runs the command line and returns the exit status, which --help explains.
//   open: loads the network
int run_program(Program const& program, int count, char** arguments, OpenNetwork const& open);

}  // namespace codetr
