#include "worker/rank_executor.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "gtest/gtest.h"
#include "worker/call_refusal.h"
#include "worker/cpu_device.h"
#include "worker/host_buffer_pool.h"
#include "worker/in_process_communicator.h"
#include "worker/region.h"
#include "worker/region_table.h"
#include "worker/torch_attention_kernels.h"

namespace ithaca {
namespace {

class CountingDevice : public CpuDevice {
 public:
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    ++allocations_;
    return CpuDevice::Allocate(bytes);
  }
  int allocations() const { return allocations_; }

 private:
  int allocations_ = 0;
};

AttentionShape Shape(int64_t image_tokens) {
  AttentionShape shape;
  shape.image_tokens = image_tokens;
  shape.text_tokens = 3;
  shape.valid_text_tokens = {2};
  shape.num_heads = 4;
  shape.num_kv_heads = 4;
  shape.head_dim = 8;
  return shape;
}

// A client's memory that is whole until its output is to be written.
class ShrinkingMemory : public RegionOpener {
 public:
  absl::StatusOr<std::unique_ptr<AttachedRegion>> Open(
      const Region& /*region*/) override {
    return std::make_unique<Shrinking>();
  }

 private:
  class Shrinking : public AttachedRegion {
   public:
    absl::Status Check() override { return absl::OkStatus(); }
    absl::Status CopyToDevice(Device*, void*, int64_t, int64_t) override {
      return absl::OkStatus();
    }
    absl::Status CopyFromDevice(Device*, int64_t, const void*,
                                int64_t) override {
      return absl::FailedPreconditionError("the object shrank");
    }
  };
};

// One rank of `world_size`; the others never come.
struct RankAlone {
  explicit RankAlone(int world_size, RegionTable* regions = nullptr)
      : group(world_size),
        communicator(group.MakeCommunicator(0)),
        kernels(MakeTorchAttentionKernels({1})),
        executor(&device, communicator.get(), kernels.get(), &buffers,
                 regions) {}

  CountingDevice device;
  HostBufferPool buffers;
  InProcessGroup group;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<AttentionKernels> kernels;
  RankExecutor executor;
};

TEST(RankExecutorTest, WarmingUpNeedsNoOtherRankAndNoExchange) {
  RankAlone rank(4);
  for (const HeadSchedule schedule :
       {HeadSchedule::kFused, HeadSchedule::kPerHead}) {
    AttentionOptions options;
    options.schedule = schedule;
    const absl::Status status = rank.executor.WarmUp(Shape(20), options);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(rank.communicator->num_exchanges(), 0);
}

TEST(RankExecutorTest, AWarmedUpCallAllocatesNothing) {
  RankAlone rank(1);
  const AttentionShape shape = Shape(20);
  ASSERT_TRUE(rank.executor.WarmUp(shape, {}).ok());
  const int before = rank.device.allocations();
  EXPECT_GT(before, 0);

  RankCall call;
  call.number = 1;
  call.shape = shape;
  call.return_text_output = true;
  call.plan_fingerprint =
      MakeSequenceParallelPlan(shape, call.options, 1)->Fingerprint();
  const std::string tensors(size_t{3} * 23 * 4 * 8 * 4, '\0');
  call.tensors = {tensors};
  const auto result = rank.executor.Run(std::move(call));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output_bytes, 23 * 4 * 8 * 4);
  EXPECT_EQ(rank.device.allocations(), before);
}

TEST(RankExecutorTest, AnOutputThatItsRegionDoesNotTakeCostsNoGroup) {
  ShrinkingMemory memory;
  RegionTable regions(&memory);
  RankAlone rank(1, &regions);
  for (uint64_t number = 1; number <= 2; ++number) {
    RankCall call;
    call.number = number;
    call.shape = Shape(20);
    call.plan_fingerprint =
        MakeSequenceParallelPlan(call.shape, call.options, 1)->Fingerprint();
    const std::string tensors(size_t{3} * 23 * 4 * 8 * 4, '\0');
    call.tensors = {tensors};
    call.output = RegionSlice{{1, 23 * 4 * 8 * 4, {}}, 0, 23 * 4 * 8 * 4};
    const absl::Status status = rank.executor.Run(std::move(call)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(RefusalOf(status), Refusal::kAfterExchanges);
  }
}

TEST(RankExecutorTest, RegionsAreRefusedWhereThereAreNone) {
  RankAlone rank(1);
  RankCall call;
  call.shape = Shape(20);
  call.plan_fingerprint =
      MakeSequenceParallelPlan(call.shape, call.options, 1)->Fingerprint();
  call.query = call.key = call.value =
      RegionSlice{{1, 23 * 4 * 8 * 4, {}}, 0, 23 * 4 * 8 * 4};
  const absl::Status status = rank.executor.Run(std::move(call)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(RefusalOf(status), Refusal::kOwnReason);
}

TEST(RankExecutorTest, AShapeThatCannotRunIsSaid) {
  RankAlone rank(2);
  AttentionOptions options;
  options.kernel = AttentionKernelKind::kCudnn;
  EXPECT_EQ(rank.executor.WarmUp(Shape(20), options).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(rank.executor.WarmUp(Shape(20), {}).ok());
}

}  // namespace
}  // namespace ithaca
