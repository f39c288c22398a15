#include "server/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace ithaca::server {
namespace {

TEST(Utf8Test, TakesWhatRfc3629Takes) {
  for (const char* text : {"", "plain", "\xc3\xa9", "\xe2\x82\xac",
                           "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsValidUtf8(text)) << text;
  }
  EXPECT_TRUE(IsValidUtf8(std::string("a\0b", 3)));
}

TEST(Utf8Test, RefusesOverlongSurrogatesTruncatedAndTooLarge) {
  for (const char* text :
       {"\xff", "\x80", "\xc0\xaf", "\xc3", "\xe0\x80\xaf", "\xed\xa0\x80",
        "\xe2\x82", "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "a\xe2\x28\xa1"}) {
    EXPECT_FALSE(IsValidUtf8(text)) << text;
  }
}

TEST(Utf8Test, ReplacesBadBytesAndCutsBetweenCharacters) {
  EXPECT_EQ(ToValidUtf8("a\xff\xc3\xa9", 100), "a?\xc3\xa9");
  EXPECT_EQ(ToValidUtf8("a\xc3\xa9", 2), "a");
  EXPECT_EQ(ToValidUtf8("abc", 0), "");
}

}  // namespace
}  // namespace ithaca::server
