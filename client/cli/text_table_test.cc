#include "client/cli/text_table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace ithaca::client {
namespace {

TEST(TextTableTest, ColumnsAreAligned) {
  TextTable table;
  table.AddRow({"stage", "p50"});
  table.AddRow({"all_to_all", "1.00 ms", "x"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "stage           p50\n"
            "all_to_all  1.00 ms  x\n");
}

TEST(TextTableTest, SecondsHaveThreeDigitsAndTheirUnit) {
  EXPECT_EQ(SecondsText(0), "0.00 us");
  EXPECT_EQ(SecondsText(1.234e-6), "1.23 us");
  EXPECT_EQ(SecondsText(12.34e-6), "12.3 us");
  EXPECT_EQ(SecondsText(0.000999), "999 us");
  EXPECT_EQ(SecondsText(0.0009996), "1.00 ms");
  EXPECT_EQ(SecondsText(0.0456), "45.6 ms");
  EXPECT_EQ(SecondsText(7.5), "7.50 s");
  EXPECT_EQ(SecondsText(-2e-5), "-20.0 us");
}

TEST(TextTableTest, BytesAreBinary) {
  EXPECT_EQ(BytesText(512), "512 B");
  EXPECT_EQ(BytesText(1536), "1.50 KiB");
  EXPECT_EQ(BytesText(28.3 * (1 << 20)), "28.3 MiB");
  EXPECT_EQ(BytesText(3.0 * (1 << 30)), "3.00 GiB");
}

}  // namespace
}  // namespace ithaca::client
