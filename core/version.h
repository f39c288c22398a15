#ifndef ITHACA_CORE_VERSION_H_
#define ITHACA_CORE_VERSION_H_

#include <string_view>

namespace ithaca {

// What the file VERSION at the root holds: "1.2.3".
std::string_view Version();

}  // namespace ithaca

#endif  // ITHACA_CORE_VERSION_H_
