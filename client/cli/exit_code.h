#ifndef ITHACA_CLIENT_CLI_EXIT_CODE_H_
#define ITHACA_CLIENT_CLI_EXIT_CODE_H_

#include <ostream>

#include "absl/status/status.h"

namespace ithaca::client {

// What `ithaca` exits with; kExitCodeHelp says the same to its users.
enum ExitCode : int {
  kSuccess = 0,
  kWrongNumbers = 1,
  kUsage = 2,
  kRefused = 3,
  kTryLater = 4,
};

inline constexpr char kExitCodeHelp[] =
    "Exit codes:\n"
    "  0  it worked\n"
    "  1  --verify found the output beyond its error limit\n"
    "  2  wrong flags, or a file that can't be read or written\n"
    "  3  the server refused the call or failed it for good\n"
    "  4  no server, or it is busy or not ready: trying later may help";

// Prints "ithaca: <message>" and, where there is something to do about it, a
// line that says what; the exit code of a call that ended so.
ExitCode ReportCallError(const absl::Status& status, std::ostream& err);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_EXIT_CODE_H_
