#include "server/wire_reader.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "server/tensor_bytes.h"

namespace ithaca::server {
namespace {

// `text` in pieces of one byte, so that every read crosses borders.
TensorBytes Shattered(const std::string& text) {
  TensorBytes bytes;
  for (const char byte : text) bytes.Append(grpc::Slice(std::string(1, byte)));
  return bytes;
}

TEST(WireReaderTest, VarintsRoundTripAtEveryLength) {
  for (int bits = 0; bits < 64; ++bits) {
    const uint64_t value = (uint64_t{1} << bits) | 1;
    std::string text;
    AppendVarint(value, &text);
    const TensorBytes bytes = Shattered(text);
    WireReader reader(bytes);
    uint64_t read = 0;
    ASSERT_TRUE(reader.ReadVarint(&read));
    EXPECT_EQ(read, value);
    EXPECT_TRUE(reader.AtLimit());
  }
}

TEST(WireReaderTest, RefusesVarintsThatAreCutOrTooLong) {
  for (const std::string& text :
       {std::string(), std::string("\x80"), std::string(9, '\xff'),
        std::string(10, '\xff') + '\x01'}) {
    const TensorBytes bytes = Shattered(text);
    WireReader reader(bytes);
    uint64_t value = 0;
    EXPECT_FALSE(reader.ReadVarint(&value)) << text.size();
  }
}

TEST(WireReaderTest, RefusesBadTags) {
  for (const std::string& text :
       {std::string(1, '\0'), std::string("\x02"), std::string("\x0c"),
        std::string(5, '\xff')}) {
    const TensorBytes bytes = Shattered(text);
    WireReader reader(bytes);
    uint32_t tag = 0;
    EXPECT_FALSE(reader.ReadTag(&tag));
  }
}

TEST(WireReaderTest, RefusesLengthsPastTheLimitAndPast2GiB) {
  for (const uint64_t length : {uint64_t{4}, uint64_t{0x7fffffff},
                                uint64_t{1} << 32, uint64_t{1} << 63}) {
    std::string text;
    AppendVarint(length, &text);
    text += "abc";
    const TensorBytes bytes = Shattered(text);
    WireReader reader(bytes);
    int64_t read = 0;
    EXPECT_FALSE(reader.ReadLength(&read)) << length;
  }
}

TEST(WireReaderTest, ANarrowedReaderStopsAtItsLimit) {
  std::string text;
  AppendLengthDelimited(1, "\x08\x96", &text);  // an inner varint, cut
  text += "\x01";
  const TensorBytes bytes = Shattered(text);
  WireReader reader(bytes);
  uint32_t tag = 0;
  int64_t length = 0;
  uint64_t value = 0;
  ASSERT_TRUE(reader.ReadTag(&tag));
  ASSERT_TRUE(reader.ReadLength(&length));
  reader.Narrow(length);
  ASSERT_TRUE(reader.ReadTag(&tag));
  EXPECT_FALSE(reader.ReadVarint(&value));
}

TEST(WireReaderTest, SkipsGroupsThatEndAndNestNoDeeperThanAllowed) {
  const std::string start(1, static_cast<char>(0x0b));
  const std::string end(1, static_cast<char>(0x0c));
  const auto skips = [](const std::string& text) {
    const TensorBytes bytes = Shattered(text);
    WireReader reader(bytes);
    uint32_t tag = 0;
    return reader.ReadTag(&tag) &&
           reader.SkipField(tag, WireReader::kMaxDepth) && reader.AtLimit();
  };
  const auto nested = [&](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += start;
    for (int i = 0; i < depth; ++i) text += end;
    return text;
  };
  EXPECT_TRUE(skips(nested(1)));
  EXPECT_TRUE(skips(nested(100)));
  EXPECT_FALSE(skips(nested(101)));
  EXPECT_FALSE(skips(start));
  EXPECT_FALSE(skips(start + "\x14"));  // the end of another field
}

TEST(WireReaderTest, PiecesAreReferencesToWhatWasReceived) {
  std::string text;
  AppendLengthDelimited(3, std::string(5000, 't'), &text);
  TensorBytes bytes;
  bytes.Append(grpc::Slice(text));
  WireReader reader(bytes);
  uint32_t tag = 0;
  int64_t length = 0;
  ASSERT_TRUE(reader.ReadTag(&tag));
  ASSERT_TRUE(reader.ReadLength(&length));
  TensorBytes data;
  reader.ReadPieces(length, &data);
  ASSERT_EQ(data.pieces().size(), 1u);
  EXPECT_EQ(data.pieces()[0].begin(),
            bytes.pieces()[0].begin() + (text.size() - 5000));
}

}  // namespace
}  // namespace ithaca::server
