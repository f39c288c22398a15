#ifndef ITHACA_CORE_NETWORK_NAMESPACE_H_
#define ITHACA_CORE_NETWORK_NAMESPACE_H_

#include <string>

namespace ithaca {

// Names this process's network name space among those of all hosts. Two
// processes with the same name reach each other's abstract sockets and loopback
// addresses. Empty where Linux does not tell. Thread-safe.
std::string NetworkNamespace();

}  // namespace ithaca

#endif  // ITHACA_CORE_NETWORK_NAMESPACE_H_
