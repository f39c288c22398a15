#ifndef ITHACA_SERVER_LEASE_TOKEN_H_
#define ITHACA_SERVER_LEASE_TOKEN_H_

#include <cstdint>
#include <string>

// Numbers that nobody can guess, from the kernel. Thread-safe.

namespace ithaca::server {

// 128 random bits as 32 hexadecimal digits. Who knows a lease may use its
// regions: it belongs in no log.
std::string NewLeaseToken();

uint64_t RandomNumber();

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_LEASE_TOKEN_H_
