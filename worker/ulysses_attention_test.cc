#include "worker/ulysses_attention.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/arena.h"
#include "worker/cpu_device.h"
#include "worker/in_process_communicator.h"
#include "worker/torch_attention_kernels.h"
#include "worker/ulysses_test_group.h"

namespace ithaca {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr CommunicationPrecision kPrecisions[] = {
    CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
    CommunicationPrecision::kInt8};
constexpr HeadSchedule kSchedules[] = {HeadSchedule::kFused,
                                       HeadSchedule::kPerHead};
constexpr AttentionKernelKind kKernels[] = {AttentionKernelKind::kMath,
                                            AttentionKernelKind::kFlash};

AttentionShape Shape(int64_t image = 13, int64_t heads = 6,
                     int64_t kv_heads = 6) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.batch = 2;
  shape.image_tokens = image;
  shape.text_tokens = 5;
  shape.valid_text_tokens = {2, 5};
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = 40;
  return shape;
}

AttentionOptions Options(
    const AttentionShape& shape, HeadSchedule schedule,
    CommunicationPrecision precision = CommunicationPrecision::kNative,
    AttentionKernelKind kernel = AttentionKernelKind::kMath) {
  AttentionOptions options = DefaultOptions(shape);
  options.schedule = schedule;
  options.precision = precision;
  options.kernel = kernel;
  return options;
}

std::string MustRun(UlyssesTestGroup& group, const AttentionShape& shape,
                    const AttentionOptions& options,
                    const oracle::CallInputs& inputs) {
  absl::StatusOr<std::string> output = group.Run(shape, options, inputs);
  EXPECT_TRUE(output.ok()) << output.status();
  return output.ok() ? *output : "";
}

// Calls `check` for each schedule, precision and kernel.
template <typename Check>
void ForEachWay(const AttentionShape& shape, const Check& check) {
  for (HeadSchedule schedule : kSchedules) {
    for (CommunicationPrecision precision : kPrecisions) {
      for (AttentionKernelKind kernel : kKernels) {
        SCOPED_TRACE(testing::Message()
                     << Name(schedule) << " " << Name(precision) << " "
                     << Name(kernel));
        check(Options(shape, schedule, precision, kernel));
      }
    }
  }
}

// ----------------------------------------------------------------- the result

TEST(UlyssesAttentionTest, TheSameCallGivesTheSameBits) {
  UlyssesTestGroup group(3);
  const AttentionShape shape = Shape();
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 1);
  ForEachWay(shape, [&](const AttentionOptions& options) {
    const std::string first = MustRun(group, shape, options, inputs);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(MustRun(group, shape, options, inputs), first);
    }
  });
}

TEST(UlyssesAttentionTest, TheNumberOfRanksChangesRoundingAtMost) {
  AttentionShape shape = Shape(64, 8, 8);
  shape.head_dim = 64;
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 2);
  for (AttentionKernelKind kernel : kKernels) {
    const AttentionOptions options = Options(
        shape, HeadSchedule::kFused, CommunicationPrecision::kNative, kernel);
    UlyssesTestGroup alone(1);
    const std::vector<double> expected =
        oracle::Decode(shape.dtype, MustRun(alone, shape, options, inputs));
    for (int world_size : {2, 4, 8}) {
      UlyssesTestGroup group(world_size);
      const std::vector<double> output =
          oracle::Decode(shape.dtype, MustRun(group, shape, options, inputs));
      for (size_t i = 0; i < output.size(); ++i) {
        // One step of bfloat16.
        ASSERT_NEAR(output[i], expected[i], std::abs(expected[i]) / 128);
      }
    }
  }
}

// Rows of small calls are unpacked together with the text, those of large ones
// apart from it: the answer is the same.
TEST(UlyssesAttentionTest, LargeRowsAndTextComeHomeApart) {
  AttentionShape shape = Shape(/*image=*/320, /*heads=*/64, /*kv_heads=*/64);
  shape.dtype = DataType::kFloat32;
  shape.batch = 1;
  shape.valid_text_tokens = {3};
  shape.head_dim = 256;  // a rank's rows: 10 MiB
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 12);
  const AttentionOptions options =
      Options(shape, HeadSchedule::kFused, CommunicationPrecision::kNative,
              AttentionKernelKind::kFlash);
  UlyssesTestGroup alone(1);
  UlyssesTestGroup pair(2);
  const std::vector<double> expected =
      oracle::Decode(shape.dtype, MustRun(alone, shape, options, inputs));
  const std::vector<double> output =
      oracle::Decode(shape.dtype, MustRun(pair, shape, options, inputs));
  EXPECT_LE(oracle::RelativeL2Error(output, expected), 1e-6);
}

TEST(UlyssesAttentionTest, BothSchedulesAgree) {
  for (const auto& [heads, kv_heads] :
       {std::pair<int64_t, int64_t>{6, 6}, {8, 2}, {7, 7}}) {
    for (int world_size : {1, 2, 3}) {
      for (int64_t heads_per_lane : {1, 2}) {
        const AttentionShape shape = Shape(13, heads, kv_heads);
        const oracle::CallInputs inputs = oracle::RandomInputs(shape, 3);
        PlanPolicy policy;
        policy.heads_per_lane = heads_per_lane;
        UlyssesTestGroup group(world_size, policy);
        for (CommunicationPrecision precision : kPrecisions) {
          const std::vector<double> fused = oracle::Decode(
              shape.dtype,
              MustRun(group, shape,
                      Options(shape, HeadSchedule::kFused, precision), inputs));
          const std::vector<double> per_head = oracle::Decode(
              shape.dtype,
              MustRun(group, shape,
                      Options(shape, HeadSchedule::kPerHead, precision),
                      inputs));
          EXPECT_LE(oracle::RelativeL2Error(per_head, fused), 4e-3)
              << heads << "/" << kv_heads << " P " << world_size << " "
              << Name(precision);
        }
      }
    }
  }
}

TEST(UlyssesAttentionTest, TokenOrderOnlyMovesRows) {
  AttentionShape shape = Shape();
  shape.batch = 1;
  shape.valid_text_tokens = {3};
  UlyssesTestGroup group(3);
  const oracle::CallInputs image_first = oracle::RandomInputs(shape, 4);
  const size_t text_bytes = size_t{5} * 6 * 40 * 2;
  auto swap = [](const std::string& rows, size_t first) {
    return rows.substr(first) + rows.substr(0, first);
  };
  auto text_first = [&](const std::string& rows) {
    return swap(rows, rows.size() - text_bytes);
  };
  const oracle::CallInputs moved = {text_first(image_first.query),
                                    text_first(image_first.key),
                                    text_first(image_first.value)};
  ForEachWay(shape, [&](const AttentionOptions& options) {
    shape.order = TokenOrder::kImageFirst;
    const std::string expected = MustRun(group, shape, options, image_first);
    shape.order = TokenOrder::kTextFirst;
    EXPECT_EQ(swap(MustRun(group, shape, options, moved), text_bytes),
              expected);
  });
}

TEST(UlyssesAttentionTest, PaddedTextHasNoInfluence) {
  const AttentionShape shape = Shape();
  UlyssesTestGroup group(3);
  const oracle::CallInputs clean = oracle::RandomInputs(shape, 5);
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    oracle::CallInputs dirty = clean;
    for (std::string* tensor : {&dirty.query, &dirty.key, &dirty.value}) {
      std::vector<double> values = oracle::Decode(shape.dtype, *tensor);
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t token = static_cast<int64_t>(i) / 240;
        if (!oracle::KeyIsKept(shape, token / 18, token % 18)) values[i] = bad;
      }
      *tensor = oracle::Encode(shape.dtype, values);
    }
    ForEachWay(shape, [&](const AttentionOptions& options) {
      EXPECT_EQ(MustRun(group, shape, options, dirty),
                MustRun(group, shape, options, clean));
    });
  }
}

TEST(UlyssesAttentionTest, KeptInfinitiesAndNansPropagate) {
  const AttentionShape shape = Shape();
  UlyssesTestGroup group(3);
  const double infinity = std::numeric_limits<double>::infinity();
  for (double bad : {infinity, -infinity, std::nan("")}) {
    for (int tensor = 0; tensor < 3; ++tensor) {
      // An image row of rank 1 and a valid text row, of different heads.
      oracle::CallInputs inputs = oracle::RandomInputs(shape, 6);
      std::string& bytes = tensor == 0   ? inputs.query
                           : tensor == 1 ? inputs.key
                                         : inputs.value;
      std::vector<double> values = oracle::Decode(shape.dtype, bytes);
      values[(6 * 6 + 1) * 40 + 3] = bad;
      values[(14 * 6 + 4) * 40 + 7] = bad;
      bytes = oracle::Encode(shape.dtype, values);
      const std::vector<double> expected =
          oracle::Attention(shape, oracle::DefaultScale(shape), inputs);
      ForEachWay(shape, [&](const AttentionOptions& options) {
        const std::vector<double> output =
            oracle::Decode(shape.dtype, MustRun(group, shape, options, inputs));
        ASSERT_EQ(output.size(), expected.size());
        const bool native =
            options.precision == CommunicationPrecision::kNative;
        for (size_t i = 0; i < output.size(); ++i) {
          if (!std::isfinite(expected[i])) {
            ASSERT_FALSE(std::isfinite(output[i])) << tensor << " at " << i;
          } else if (native) {
            ASSERT_TRUE(std::isfinite(output[i])) << tensor << " at " << i;
          }
        }
      });
    }
  }
}

// The accuracy that 8-bit communication is allowed to cost.
struct Accuracy {
  double error = 0;
  double cosine = 0;
};

Accuracy Compare(const std::vector<double>& output,
                 const std::vector<double>& native) {
  double dot = 0;
  double output_norm = 0;
  double native_norm = 0;
  for (size_t i = 0; i < output.size(); ++i) {
    dot += output[i] * native[i];
    output_norm += output[i] * output[i];
    native_norm += native[i] * native[i];
  }
  return {oracle::RelativeL2Error(output, native),
          dot / std::sqrt(output_norm * native_norm)};
}

enum class Data { kCentred, kGaussian, kOffsetKeys, kPeakyLogits };

// Standard normal q and k. Values around 1, but for kCentred: of values around
// 0 the output is what is left when nearly all cancels, and the formats alone
// cost it 5.2e-2 (FP8) and 1.3e-2 (INT8), whatever computes them.
oracle::CallInputs Inputs(const AttentionShape& shape, Data data) {
  oracle::CallInputs inputs = oracle::RandomInputs(shape, 7);
  auto change = [&shape](std::string& tensor, auto&& fn) {
    std::vector<double> values = oracle::Decode(shape.dtype, tensor);
    for (size_t i = 0; i < values.size(); ++i) fn(i, values[i]);
    tensor = oracle::Encode(shape.dtype, values);
  };
  if (data != Data::kCentred) {
    change(inputs.value, [](size_t, double& value) { value += 1; });
  }
  if (data == Data::kOffsetKeys) {
    // Four channels of each key row stand far out, as real keys' do.
    change(inputs.key, [](size_t i, double& value) {
      if (i % 32 == 5) value += 8;
    });
  }
  if (data == Data::kPeakyLogits) {
    change(inputs.query, [](size_t, double& value) { value *= 4; });
  }
  return inputs;
}

TEST(UlyssesAttentionTest, QuantizedCommunicationIsAccurate) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = 512;
  shape.text_tokens = 32;
  shape.valid_text_tokens = {32};
  shape.num_heads = shape.num_kv_heads = 2;
  shape.head_dim = 128;
  struct Case {
    Data data;
    Accuracy fp8;
    Accuracy int8;
  };
  UlyssesTestGroup group(2);
  for (const Case& c :
       {Case{Data::kCentred, {5.5e-2, 0.998}, {1.4e-2, 0.9999}},
        Case{Data::kGaussian, {3.2e-2, 0.9995}, {1e-2, 0.9999}},
        Case{Data::kOffsetKeys, {4.2e-2, 0.999}, {2e-2, 0.9998}},
        Case{Data::kPeakyLogits, {6.5e-2, 0.998}, {2e-2, 0.9998}}}) {
    const oracle::CallInputs inputs = Inputs(shape, c.data);
    const std::vector<double> native = oracle::Decode(
        shape.dtype,
        MustRun(group, shape, Options(shape, HeadSchedule::kFused), inputs));
    for (const auto& [precision, allowed] :
         {std::pair{CommunicationPrecision::kFp8E4m3, c.fp8},
          std::pair{CommunicationPrecision::kInt8, c.int8}}) {
      const Accuracy accuracy =
          Compare(oracle::Decode(
                      shape.dtype,
                      MustRun(group, shape,
                              Options(shape, HeadSchedule::kPerHead, precision),
                              inputs)),
                  native);
      EXPECT_LE(accuracy.error, allowed.error)
          << Name(precision) << " data " << static_cast<int>(c.data);
      EXPECT_GE(accuracy.cosine, allowed.cosine)
          << Name(precision) << " data " << static_cast<int>(c.data);
    }
  }
}

// ---------------------------------------------------------------------- costs

TEST(UlyssesAttentionTest, CostsExactlyThePlannedExchanges) {
  for (int world_size : {1, 2, 3, 7}) {
    UlyssesTestGroup group(world_size);
    for (int64_t text : {0, 5}) {
      for (bool image_queries_only : {false, true}) {
        AttentionShape shape = Shape();
        shape.text_tokens = text;
        shape.valid_text_tokens = {0, text};
        shape.image_queries_only = image_queries_only;
        const oracle::CallInputs inputs = oracle::RandomInputs(shape, 8);
        for (HeadSchedule schedule : kSchedules) {
          for (CommunicationPrecision precision : kPrecisions) {
            const AttentionOptions options =
                Options(shape, schedule, precision);
            const int planned =
                MakeSequenceParallelPlan(shape, options, world_size)
                    ->NumExchanges();
            const int lanes = schedule == HeadSchedule::kFused
                                  ? 1
                                  : (6 + world_size - 1) / world_size;
            EXPECT_EQ(planned, 2 * lanes + (text > 0 && !image_queries_only));
            std::vector<uint64_t> before;
            before.reserve(static_cast<size_t>(world_size));
            for (int rank = 0; rank < world_size; ++rank) {
              before.push_back(group.communicator(rank).num_exchanges());
            }
            MustRun(group, shape, options, inputs);
            for (int rank = 0; rank < world_size; ++rank) {
              EXPECT_EQ(group.communicator(rank).num_exchanges() - before[rank],
                        planned);
            }
          }
        }
      }
    }
  }
}

TEST(UlyssesAttentionTest, SendsWhatOthersNeedAndNoMore) {
  AttentionShape shape = Shape(8, 4, 2);
  shape.batch = 1;
  shape.valid_text_tokens = {3};
  UlyssesTestGroup group(2);
  std::vector<RankReport> reports;
  ASSERT_TRUE(group
                  .Run(shape, Options(shape, HeadSchedule::kPerHead),
                       oracle::RandomInputs(shape, 9), &reports)
                  .ok());
  // Each rank has 4 image tokens, 2 query heads and 1 kv head. In: 4 tokens of
  // 2 + 1 + 1 heads. Back: 4 tokens of 2 heads, and 3 text tokens of them.
  const int64_t row = 80;
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.communication_bytes, (4 * 4 + 4 * 2 + 3 * 2) * row);
  }
  ASSERT_TRUE(group
                  .Run(shape,
                       Options(shape, HeadSchedule::kFused,
                               CommunicationPrecision::kInt8),
                       oracle::RandomInputs(shape, 9), &reports)
                  .ok());
  // 8 bits and a scale a row for the image, 24 rows in all; every part happens
  // to fill whole units of 16 bytes.
  EXPECT_EQ(reports[0].communication_bytes, 24 * int64_t{44} + 6 * row);
  UlyssesTestGroup alone(1);
  ASSERT_TRUE(alone
                  .Run(shape, Options(shape, HeadSchedule::kFused),
                       oracle::RandomInputs(shape, 9), &reports)
                  .ok());
  EXPECT_EQ(reports[0].communication_bytes, 0);
}

TEST(UlyssesAttentionTest, MemoryDependsOnTheLargestCallOnly) {
  UlyssesTestGroup group(2);
  const AttentionShape large = Shape(64, 8, 8);
  MustRun(group, large, Options(large, HeadSchedule::kFused),
          oracle::RandomInputs(large, 10));
  const int64_t capacity = group.arena(0).capacity();
  for (int64_t image = 1; image < 64; image += 3) {
    const AttentionShape shape = Shape(image, 4, 2);
    for (HeadSchedule schedule : kSchedules) {
      MustRun(group, shape, Options(shape, schedule),
              oracle::RandomInputs(shape, 10));
    }
  }
  EXPECT_EQ(group.arena(0).capacity(), capacity);
}

TEST(UlyssesAttentionTest, ReportsStagesAndKernel) {
  const AttentionShape shape = Shape();
  UlyssesTestGroup group(2);
  std::vector<RankReport> reports;
  AttentionOptions options = Options(shape, HeadSchedule::kPerHead);
  options.kernel = AttentionKernelKind::kAuto;
  ASSERT_TRUE(
      group.Run(shape, options, oracle::RandomInputs(shape, 11), &reports)
          .ok());
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.kernel, AttentionKernelKind::kFlash);
    EXPECT_GT(report.stage_seconds[size_t(Stage::kAttention)], 0);
    EXPECT_GT(report.stage_seconds[size_t(Stage::kPack)], 0);
    EXPECT_GT(report.stage_seconds[size_t(Stage::kOutputAllToAll)], 0);
    EXPECT_EQ(report.stage_seconds[size_t(Stage::kGather)], 0);
    EXPECT_THAT(report.stage_seconds, Each(testing::Ge(0.0)));
  }
}

TEST(UlyssesAttentionTest, NamesStagesAsTheReportDoes) {
  const char* const names[] = {
      "scatter",   "pack",        "all_to_all",        "unpack",
      "attention", "output_pack", "output_all_to_all", "output_unpack",
      "gather"};
  for (int stage = 0; stage < kNumStages; ++stage) {
    EXPECT_EQ(Name(static_cast<Stage>(stage)), names[stage]);
  }
}

// --------------------------------------------------------------------- faults

// A device that has no memory while `full` is set.
class FullDevice : public CpuDevice {
 public:
  explicit FullDevice(const std::atomic<bool>* full) : full_(full) {}
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (*full_) return absl::ResourceExhaustedError("no memory left");
    return CpuDevice::Allocate(bytes);
  }

 private:
  const std::atomic<bool>* const full_;
};

TEST(UlyssesAttentionTest, ARankWithoutMemoryRefusesForAllAndHarmsNone) {
  const AttentionShape shape = Shape();
  const AttentionOptions options = Options(shape, HeadSchedule::kFused);
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 12);
  std::atomic<bool> full{true};
  UlyssesTestGroup group(3);
  group.Replace(1, std::make_unique<FullDevice>(&full));
  EXPECT_FALSE(group.Run(shape, options, inputs).ok());
  for (const absl::Status& status : group.statuses()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
  EXPECT_EQ(group.statuses()[1].message(), "no memory left");
  EXPECT_THAT(std::string(group.statuses()[0].message()), HasSubstr("rank 1"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.communicator(rank).num_exchanges(), 0);
  }
  full = false;
  UlyssesTestGroup other(3);
  EXPECT_EQ(MustRun(group, shape, options, inputs),
            MustRun(other, shape, options, inputs));
}

TEST(UlyssesAttentionTest, AKernelThatIsNotThereIsUnimplementedEverywhere) {
  const AttentionShape shape = Shape();
  AttentionOptions options = Options(shape, HeadSchedule::kFused);
  options.kernel = AttentionKernelKind::kCudnn;
  UlyssesTestGroup group(2);
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 13);
  EXPECT_FALSE(group.Run(shape, options, inputs).ok());
  for (const absl::Status& status : group.statuses()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("cudnn"));
  }
  options.kernel = AttentionKernelKind::kFlash;
  MustRun(group, shape, options, inputs);
}

TEST(UlyssesAttentionTest, AVoteAgainstTheCallLeavesTheGroupIntact) {
  const AttentionShape shape = Shape();
  const AttentionOptions options = Options(shape, HeadSchedule::kPerHead);
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 14);
  UlyssesTestGroup group(2);
  group.faults().FailNextVote(1, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(group.Run(shape, options, inputs).status().code(),
            absl::StatusCode::kResourceExhausted);
  MustRun(group, shape, options, inputs);
}

TEST(UlyssesAttentionTest, AKilledRankFailsTheOthersCalls) {
  AttentionShape shape = Shape();
  UlyssesTestGroup group(3);
  group.faults().DelayExchanges(2, absl::Seconds(1));
  std::thread killer([&group] {
    absl::SleepFor(absl::Milliseconds(200));
    group.faults().KillRank(2);
  });
  EXPECT_FALSE(group
                   .Run(shape, Options(shape, HeadSchedule::kPerHead),
                        oracle::RandomInputs(shape, 15))
                   .ok());
  killer.join();
  for (const absl::Status& status : group.statuses()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

// Kernels that run out of memory in the middle of a call.
class FailingKernels : public AttentionKernels {
 public:
  absl::StatusOr<AttentionKernelKind> Choose(
      AttentionKernelKind wanted, const AttentionShape& shape) const override {
    return real_->Choose(wanted, shape);
  }
  std::vector<AttentionKernelKind> Available() const override {
    return real_->Available();
  }
  absl::StatusOr<AttentionResult> Attend(
      const AttentionArguments& arguments) override {
    if (++calls_ == 3) return absl::ResourceExhaustedError("burst");
    return real_->Attend(arguments);
  }

 private:
  const std::unique_ptr<AttentionKernels> real_ =
      MakeTorchAttentionKernels({1});
  int calls_ = 0;
};

TEST(UlyssesAttentionTest, AFailureAfterTheFirstExchangeLosesTheGroup) {
  const AttentionShape shape = Shape();
  UlyssesTestGroup group(2);
  group.Replace(1, std::make_unique<FailingKernels>());
  EXPECT_FALSE(group
                   .Run(shape, Options(shape, HeadSchedule::kPerHead),
                        oracle::RandomInputs(shape, 16))
                   .ok());
  EXPECT_EQ(group.statuses()[1].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(group.statuses()[1].message()), HasSubstr("burst"));
  EXPECT_EQ(group.statuses()[0].code(), absl::StatusCode::kUnavailable);
}

TEST(UlyssesAttentionTest, APlanForAnotherGroupIsRefused) {
  const AttentionShape shape = Shape();
  const SequenceParallelPlan plan =
      *MakeSequenceParallelPlan(shape, Options(shape, HeadSchedule::kFused), 2);
  InProcessGroup group(1);
  CpuDevice device;
  Arena arena(&device);
  auto communicator = group.MakeCommunicator(0);
  auto kernels = MakeTorchAttentionKernels({1});
  UlyssesAttention attention(&device, communicator.get(), kernels.get(),
                             &arena);
  EXPECT_EQ(attention.Run(plan, 1, {}, {}).status().code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ithaca
