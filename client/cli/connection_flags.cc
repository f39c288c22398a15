#include "client/cli/connection_flags.h"

#include <CLI/CLI.hpp>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ithaca::client {

ClientOptions ConnectionFlags::Options(std::ostream& err) const {
  return {.address = address,
          .token = token,
          .connect_timeout = absl::Seconds(connect_timeout_seconds),
          .max_message_bytes = max_message_bytes,
          .plane = ParsePlane(plane).value_or(Plane::kAuto),
          .on_fallback =
              [&err](const std::string& note) {
                // In one piece: other threads print too.
                err << absl::StrCat(
                    "ithaca: fell back to another plane: ", note, "\n");
              },
          .connections = connections};
}

absl::Time ConnectionFlags::Deadline() const {
  return absl::Now() + absl::Seconds(timeout_seconds);
}

int64_t ConnectionFlags::LargestRequest() const {
  return ParsePlane(plane) == Plane::kUnary
             ? max_message_bytes
             : std::numeric_limits<int64_t>::max();
}

void AddPlaneFlag(CLI::App* command, ConnectionFlags* flags) {
  command
      ->add_option("--plane", flags->plane,
                   "How tensors get there and back: auto, unary (inside the "
                   "messages), stream (in chunks), shared-memory (of this "
                   "host)")
      ->check(CLI::IsMember(
                  {"auto", "unary", "stream", "shared-memory", "shared_memory"})
                  .description(""))
      ->type_name("NAME")
      ->capture_default_str()
      ->group("Connection");
}

void AddConnectionFlags(CLI::App* command, ConnectionFlags* flags) {
  const char* group = "Connection";
  command->add_option("--address", flags->address, "Coordinator, HOST:PORT")
      ->envname("ITHACA_ADDRESS")
      ->capture_default_str()
      ->group(group);
  command->add_option("--token", flags->token, "Bearer token of the server")
      ->envname("ITHACA_TOKEN")
      ->group(group);
  command
      ->add_option("--connect-timeout-seconds", flags->connect_timeout_seconds,
                   "How long to wait for the first connection")
      ->check(CheckAboveZero)
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--timeout-seconds", flags->timeout_seconds,
                   "Deadline of a call")
      ->check(CheckAboveZero)
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--connections", flags->connections,
                   "Connections to spread calls over")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--max-message-bytes", flags->max_message_bytes,
                   "Largest message to send or take")
      ->check(CheckAboveZero)
      ->capture_default_str()
      ->group(group);
}

std::string CheckAboveZero(const std::string& text) {
  double number = 0;
  if (absl::SimpleAtod(text, &number) && number > 0) return "";
  return absl::StrCat("expected a number above 0, got ", text);
}

}  // namespace ithaca::client
