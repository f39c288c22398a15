#ifndef ITHACA_CLIENT_CLI_INFO_COMMAND_H_
#define ITHACA_CLIENT_CLI_INFO_COMMAND_H_

#include <ostream>

#include "client/cli/connection_flags.h"

namespace ithaca::client {

struct InfoFlags {
  ConnectionFlags connection = {};
  bool json = false;
};

// `flags` outlives the parsing.
void AddInfoFlags(CLI::App* command, InfoFlags* flags);

// Prints what the server can do and whether it is serving; an ExitCode.
int RunInfo(const InfoFlags& flags, std::ostream& out, std::ostream& err);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_INFO_COMMAND_H_
