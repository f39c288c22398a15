#ifndef ITHACA_CLIENT_CLI_VERSION_H_
#define ITHACA_CLIENT_CLI_VERSION_H_

namespace ithaca::client {

// What the file VERSION at the root holds: "1.2.3".
extern const char kVersion[];

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_VERSION_H_
