// The program, but for what runs the network.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "arguments.h"
#include "metadata.h"
#include "network.h"

namespace codetr {

using OpenNetwork = std::function<std::unique_ptr<Network>(Options const&, Metadata const&)>;

// Runs the command line and returns the exit status, which the usage explains.
//   open: loads the network
//   versions: what --version prints after the program's own
int run_program(Program const& program, int count, char** arguments, OpenNetwork const& open,
                std::string const& versions);

}  // namespace codetr
