#include "worker/cuda_kernel_choice.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kAmpere = 80;
constexpr int kHopper = 90;
constexpr int kTuring = 75;

AttentionShape Flux() {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = 4096;
  shape.text_tokens = 512;
  shape.valid_text_tokens = {512};
  shape.num_heads = 24;
  shape.num_kv_heads = 24;
  shape.head_dim = 128;
  return shape;
}

AttentionKernelKind Auto(const AttentionShape& shape, int capability) {
  return ChooseCudaKernel(AttentionKernelKind::kAuto, shape, capability,
                          "cuda:0")
      .value();
}

absl::Status Refusal(AttentionKernelKind kernel, const AttentionShape& shape,
                     int capability) {
  return ChooseCudaKernel(kernel, shape, capability, "cuda:3").status();
}

TEST(CudaKernelChoiceTest, AutoTakesCudnnOnHopperOnly) {
  EXPECT_EQ(Auto(Flux(), kHopper), AttentionKernelKind::kCudnn);
  EXPECT_EQ(Auto(Flux(), 100), AttentionKernelKind::kCudnn);
  EXPECT_EQ(Auto(Flux(), kAmpere), AttentionKernelKind::kFlash);
  EXPECT_EQ(Auto(Flux(), 120), AttentionKernelKind::kFlash);
  EXPECT_EQ(Auto(Flux(), kTuring), AttentionKernelKind::kMath);
}

TEST(CudaKernelChoiceTest, AutoNeverLowersFloat32) {
  AttentionShape shape = Flux();
  shape.dtype = DataType::kFloat32;
  EXPECT_EQ(Auto(shape, kHopper), AttentionKernelKind::kMath);
}

TEST(CudaKernelChoiceTest, AutoFallsBackWhereCudnnCannot) {
  AttentionShape shape = Flux();
  shape.head_dim = 129;
  EXPECT_EQ(Auto(shape, kHopper), AttentionKernelKind::kFlash);
  shape.head_dim = 77;
  EXPECT_EQ(Auto(shape, kHopper), AttentionKernelKind::kCudnn);
}

TEST(CudaKernelChoiceTest, AutoLooksAtTheShortestBatchElement) {
  AttentionShape shape = Flux();
  shape.batch = 2;
  shape.image_tokens = 1000;
  shape.valid_text_tokens = {512, 23};
  EXPECT_EQ(Auto(shape, kHopper), AttentionKernelKind::kFlash);
  shape.valid_text_tokens = {512, 24};
  EXPECT_EQ(Auto(shape, kHopper), AttentionKernelKind::kCudnn);
  // An element without a key runs nothing and limits nothing.
  shape.image_tokens = 0;
  shape.text_tokens = 4096;
  shape.valid_text_tokens = {4096, 0};
  EXPECT_EQ(Auto(shape, kHopper), AttentionKernelKind::kCudnn);
}

TEST(CudaKernelChoiceTest, ARefusalNamesKernelDeviceAndLimit) {
  AttentionShape shape = Flux();
  shape.head_dim = 160;
  absl::Status status = Refusal(AttentionKernelKind::kCudnn, shape, kHopper);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cudnn"), HasSubstr("cuda:3"),
                    HasSubstr("head_dim"), HasSubstr("128"), HasSubstr("160")));

  shape = Flux();
  shape.dtype = DataType::kFloat32;
  status = Refusal(AttentionKernelKind::kFlash, shape, kHopper);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("float32"));

  status = Refusal(AttentionKernelKind::kFlash, Flux(), kTuring);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("7.5"));

  shape = Flux();
  shape.image_tokens = 1;
  shape.text_tokens = 0;
  shape.valid_text_tokens = {0};
  status = Refusal(AttentionKernelKind::kCudnn, shape, kHopper);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys"));
}

TEST(CudaKernelChoiceTest, AKernelAskedForIsTheKernelThatRuns) {
  AttentionShape shape = Flux();
  for (const auto kernel :
       {AttentionKernelKind::kMath, AttentionKernelKind::kFlash,
        AttentionKernelKind::kCudnn}) {
    EXPECT_EQ(ChooseCudaKernel(kernel, shape, kHopper, "cuda:0").value(),
              kernel);
  }
}

TEST(CudaKernelChoiceTest, ListsWhatTheGpuHas) {
  EXPECT_THAT(CudaKernels(kTuring), ElementsAre(AttentionKernelKind::kMath));
  EXPECT_THAT(CudaKernels(kHopper), ElementsAre(AttentionKernelKind::kMath,
                                                AttentionKernelKind::kFlash,
                                                AttentionKernelKind::kCudnn));
}

}  // namespace
}  // namespace ithaca
