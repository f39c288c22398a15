#ifndef ITHACA_CLIENT_RUN_SOON_H_
#define ITHACA_CLIENT_RUN_SOON_H_

#include <functional>

namespace ithaca::client {

// Runs `function` once, on a thread of gRPC's: for places where the caller's
// code must not run, inside the transport or under somebody's locks.
void RunSoon(std::function<void()> function);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_RUN_SOON_H_
