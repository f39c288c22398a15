#ifndef ITHACA_CLIENT_CLI_ATTEND_COMMAND_H_
#define ITHACA_CLIENT_CLI_ATTEND_COMMAND_H_

#include <ostream>
#include <string>

#include "client/cli/call_flags.h"
#include "client/cli/connection_flags.h"

namespace ithaca::client {

struct AttendFlags {
  ConnectionFlags connection = {};
  CallFlags call = {};
  std::string input = {};   // .safetensors with query, key and value
  std::string output = {};  // .safetensors to write `output` to
  std::string request_id = {};
  bool verify = false;
  bool json = false;
};

// `flags` outlives the parsing.
void AddAttendFlags(CLI::App* command, AttendFlags* flags);

// Makes one call and prints its report; an ExitCode.
int RunAttend(const AttendFlags& flags, std::ostream& out, std::ostream& err);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_ATTEND_COMMAND_H_
