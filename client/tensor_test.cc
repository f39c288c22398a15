#include "client/tensor.h"

#include <gtest/gtest.h>

#include <limits>

namespace ithaca::client {
namespace {

TEST(TensorTest, DenseBytesIsTheProduct) {
  const int64_t shape[] = {2, 3, 4, 5};
  EXPECT_EQ(DenseBytes(v1::DATA_TYPE_FLOAT32, shape), 480);
  EXPECT_EQ(DenseBytes(v1::DATA_TYPE_FLOAT16, shape), 240);
  EXPECT_EQ(DenseBytes(v1::DATA_TYPE_BFLOAT16, shape), 240);
}

TEST(TensorTest, DenseBytesOfWhatIsNoTensorIsNothing) {
  const int64_t negative[] = {2, -1};
  // 2^70 bytes, which is 0 modulo 2^64.
  const int64_t wrapping[] = {1, int64_t{1} << 31, int64_t{1} << 31, 128};
  const int64_t fine[] = {1};
  EXPECT_EQ(DenseBytes(v1::DATA_TYPE_FLOAT32, negative), std::nullopt);
  EXPECT_EQ(DenseBytes(v1::DATA_TYPE_BFLOAT16, wrapping), std::nullopt);
  EXPECT_EQ(DenseBytes(v1::DATA_TYPE_UNSPECIFIED, fine), std::nullopt);
}

TEST(TensorTest, CopiesAndViewsShareTheMemory) {
  Tensor tensor(v1::DATA_TYPE_FLOAT16, {3, 2});
  ASSERT_EQ(tensor.bytes().size(), 12u);
  const Tensor copy = tensor;
  const TensorView view = tensor.view();
  tensor.bytes()[4] = std::byte{77};
  EXPECT_EQ(copy.bytes()[4], std::byte{77});
  EXPECT_EQ(view.bytes[4], std::byte{77});
  EXPECT_EQ(view.shape, tensor.shape());
  EXPECT_NE(view.owner, nullptr);
}

TEST(TensorTest, CallersMemoryIsNotOwned) {
  std::vector<std::byte> mine(8);
  const Tensor tensor(v1::DATA_TYPE_FLOAT32, {2}, mine);
  EXPECT_EQ(tensor.bytes().data(), mine.data());
  EXPECT_EQ(tensor.view().owner, nullptr);
}

}  // namespace
}  // namespace ithaca::client
