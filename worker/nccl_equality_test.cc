// Over NCCL, ranks on their GPUs, a call gives the bits that it gives within
// one process on one GPU: an exchange moves bytes and changes none.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/oracle/tensor_data.h"
#include "worker/nccl_ulysses_test_group.h"
#include "worker/ulysses_test_caller.h"
#include "worker/ulysses_test_group.h"

namespace ithaca {
namespace {

// Uneven shares of tokens and of heads, with and without text.
std::vector<AttentionShape> Shapes() {
  AttentionShape image;
  image.image_tokens = 2051;
  image.valid_text_tokens = {0};
  image.num_heads = image.num_kv_heads = 9;
  image.head_dim = 128;
  AttentionShape text = image;
  text.batch = 2;
  text.text_tokens = 77;
  text.valid_text_tokens = {77, 13};
  text.order = TokenOrder::kTextFirst;
  text.num_heads = 12;
  text.num_kv_heads = 4;
  text.head_dim = 64;
  return {image, text};
}

class NcclEqualityTest : public testing::TestWithParam<int> {};

TEST_P(NcclEqualityTest, AnExchangeOverNcclChangesNoBit) {
  const int world_size = GetParam();
  NcclUlyssesTestGroup over_nccl(world_size);
  UlyssesTestGroup in_process(world_size);
  uint64_t seed = 1;
  for (AttentionShape shape : Shapes()) {
    for (const DataType dtype :
         {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32}) {
      shape.dtype = dtype;
      const oracle::CallInputs inputs = oracle::RandomInputs(shape, seed++);
      for (const HeadSchedule schedule :
           {HeadSchedule::kFused, HeadSchedule::kPerHead}) {
        for (const CommunicationPrecision precision :
             {CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
              CommunicationPrecision::kInt8}) {
          AttentionOptions options = DefaultOptions(shape);
          options.kernel = AttentionKernelKind::kAuto;
          options.schedule = schedule;
          options.precision = precision;
          const absl::StatusOr<std::string> wanted =
              in_process.Run(shape, options, inputs);
          const absl::StatusOr<std::string> output =
              over_nccl.Run(shape, options, inputs);
          ASSERT_TRUE(wanted.ok()) << wanted.status();
          ASSERT_TRUE(output.ok()) << output.status();
          EXPECT_TRUE(*output == *wanted)
              << "T " << shape.text_tokens << " " << Name(dtype) << " "
              << Name(schedule) << " " << Name(precision);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, NcclEqualityTest,
                         testing::Values(2, 4, 8));

}  // namespace
}  // namespace ithaca
