#ifndef ITHACA_SERVER_UTF8_H_
#define ITHACA_SERVER_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

// What protobuf takes for a string: UTF-8 by RFC 3629 (no surrogates, no
// overlong forms, at most U+10FFFF). Pure functions.

namespace ithaca::server {

bool IsValidUtf8(std::string_view text);

// `text` with '?' for each byte that is not part of a valid character, cut
// before the character that would pass max_bytes.
std::string ToValidUtf8(std::string_view text, size_t max_bytes);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_UTF8_H_
