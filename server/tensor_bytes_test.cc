#include "server/tensor_bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ithaca::server {
namespace {

std::string Join(const std::vector<grpc::Slice>& slices) {
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(TensorBytesTest, EveryRangeOfPiecesOfAnySizeIsTheRightBytes) {
  std::string whole;
  TensorBytes bytes;
  for (const size_t size : {3, 0, 1, 40, 0, 7, 1}) {
    std::string piece;
    for (size_t i = 0; i < size; ++i) {
      piece.push_back(static_cast<char>(whole.size() + i));
    }
    whole += piece;
    bytes.Append(grpc::Slice(piece));
  }
  ASSERT_EQ(bytes.size(), static_cast<int64_t>(whole.size()));
  EXPECT_EQ(bytes.pieces().size(), 5u);
  EXPECT_EQ(bytes.Flatten(), whole);
  for (int64_t offset = 0; offset <= bytes.size(); ++offset) {
    for (int64_t size = 0; offset + size <= bytes.size(); ++size) {
      std::vector<grpc::Slice> slices;
      bytes.AppendRange(offset, size, &slices);
      ASSERT_EQ(Join(slices), whole.substr(static_cast<size_t>(offset),
                                           static_cast<size_t>(size)));
    }
  }
}

TEST(TensorBytesTest, ARangeRefersToTheReceivedMemory) {
  TensorBytes bytes;
  bytes.Append(grpc::Slice(std::string(100000, 'a')));
  std::vector<grpc::Slice> slices;
  bytes.AppendRange(10, 50000, &slices);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].begin(), bytes.pieces()[0].begin() + 10);
}

TEST(TensorBytesTest, PartsOutliveTheWhole) {
  std::vector<grpc::Slice> slices;
  {
    TensorBytes bytes;
    bytes.Append(grpc::Slice(std::string(1000, 'b')));
    bytes.AppendRange(1, 998, &slices);
  }
  EXPECT_EQ(Join(slices), std::string(998, 'b'));
}

TEST(TensorBytesTest, AppendingAnotherKeepsOrder) {
  TensorBytes first;
  first.Append(grpc::Slice("ab"));
  TensorBytes second;
  second.Append(grpc::Slice("cd"));
  second.Append(grpc::Slice("ef"));
  first.Append(second);
  EXPECT_EQ(first.Flatten(), "abcdef");
  EXPECT_EQ(first.size(), 6);
}

TEST(TensorBytesTest, AMessageOfNothingIsAValidMessage) {
  const grpc::ByteBuffer buffer = ToByteBuffer({});
  EXPECT_TRUE(buffer.Valid());
  EXPECT_EQ(buffer.Length(), 0u);
  TensorBytes bytes;
  EXPECT_TRUE(FromByteBuffer(buffer, &bytes));
  EXPECT_TRUE(bytes.empty());
}

TEST(TensorBytesTest, MessagesOfManyPiecesRoundTrip) {
  for (const size_t size : {1, 100, 5000}) {
    const std::vector<grpc::Slice> pieces = {
        grpc::Slice(std::string(size, 'x')), grpc::Slice(""),
        grpc::Slice(std::string(size, 'y'))};
    TensorBytes bytes;
    ASSERT_TRUE(FromByteBuffer(ToByteBuffer(pieces), &bytes));
    EXPECT_EQ(bytes.Flatten(), std::string(size, 'x') + std::string(size, 'y'));
  }
}

}  // namespace
}  // namespace ithaca::server
