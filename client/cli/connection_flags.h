#ifndef ITHACA_CLIENT_CLI_CONNECTION_FLAGS_H_
#define ITHACA_CLIENT_CLI_CONNECTION_FLAGS_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "client/attention_client.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ithaca::client {

// The flags of every command that talks to a server.
struct ConnectionFlags {
  std::string address = "127.0.0.1:50051";
  std::string token = {};
  double connect_timeout_seconds = 10;
  double timeout_seconds = 300;
  int connections = 1;
  int64_t max_message_bytes = int64_t{1} << 30;
  std::string plane = "auto";

  // A call that can't take its plane is told of on `err`, which outlives the
  // client.
  ClientOptions Options(std::ostream& err) const;
  absl::Time Deadline() const;  // of a call that starts now
  // Bytes of query, key and value that a call may have, as far as this side
  // knows: only messages are limited.
  int64_t LargestRequest() const;
};

// `flags` outlives the parsing.
void AddConnectionFlags(CLI::App* command, ConnectionFlags* flags);
// --plane, of the commands that send tensors.
void AddPlaneFlag(CLI::App* command, ConnectionFlags* flags);

// For CLI11: what is wrong with a number that has to be above 0, or nothing.
std::string CheckAboveZero(const std::string& text);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_CONNECTION_FLAGS_H_
