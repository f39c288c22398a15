#include "server/utf8.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ithaca::server {

namespace {

// Length of the valid character that `text` starts with; 0 if none does.
// REQUIRES: !text.empty().
size_t CharacterLength(std::string_view text) {
  const auto byte = [text](size_t i) -> uint8_t {
    return static_cast<uint8_t>(text[i]);
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  // What the second byte may be: narrower where overlong forms, surrogates
  // or code points over U+10FFFF would begin.
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string ToValidUtf8(std::string_view text, size_t max_bytes) {
  std::string valid;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const size_t taken = length == 0 ? 1 : length;
    if (valid.size() + taken > max_bytes) break;
    if (length == 0) {
      valid.push_back('?');
    } else {
      valid.append(text.substr(0, length));
    }
    text.remove_prefix(taken);
  }
  return valid;
}

}  // namespace ithaca::server
