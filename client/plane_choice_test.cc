#include "client/plane_choice.h"

#include <gtest/gtest.h>

namespace ithaca::client {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr PlaneLimits kRemote{.max_message_bytes = 1024 * kMiB};
constexpr PlaneLimits kLocal{.max_message_bytes = 1024 * kMiB,
                             .shared_memory = true};

TEST(PlaneTest, NamesAreReadBack) {
  for (const Plane plane : {Plane::kAuto, Plane::kUnary, Plane::kStream,
                            Plane::kSharedMemory, Plane::kCudaMemory}) {
    EXPECT_EQ(ParsePlane(Name(plane)), plane);
  }
  EXPECT_EQ(ParsePlane("shared-memory"), Plane::kSharedMemory);
  EXPECT_EQ(ParsePlane("carrier pigeon"), std::nullopt);
}

TEST(PlaneChoiceTest, AutoTakesSharedMemoryWhereTheServerHasIt) {
  const InlineBytes bytes{.request = 3 * kMiB, .response = kMiB};
  EXPECT_EQ(ChoosePlane(Plane::kAuto, bytes, kLocal).plane,
            Plane::kSharedMemory);
  EXPECT_EQ(ChoosePlane(Plane::kAuto, bytes, kRemote).plane, Plane::kUnary);
}

TEST(PlaneChoiceTest, AutoSendsSmallTensorsInsideTheMessage) {
  const InlineBytes bytes{.request = 3000, .response = 1000};
  EXPECT_EQ(ChoosePlane(Plane::kAuto, bytes, kLocal).plane, Plane::kUnary);
  EXPECT_EQ(ChoosePlane(Plane::kSharedMemory, bytes, kLocal).plane,
            Plane::kSharedMemory);
}

TEST(PlaneChoiceTest, AutoStreamsWhatIsLarge) {
  EXPECT_EQ(
      ChoosePlane(Plane::kAuto, {.request = kStreamFromBytes}, kRemote).plane,
      Plane::kStream);
  EXPECT_EQ(ChoosePlane(Plane::kAuto,
                        {.request = 1, .response = kStreamFromBytes}, kRemote)
                .plane,
            Plane::kStream);
}

TEST(PlaneChoiceTest, AutoStreamsWhatNoMessageHolds) {
  const PlaneLimits small{.max_message_bytes = kMiB};
  for (const uint64_t request : {kMiB - 1000, kMiB, 2 * kMiB}) {
    EXPECT_EQ(ChoosePlane(Plane::kAuto, {.request = request}, small).plane,
              Plane::kStream);
  }
  EXPECT_EQ(ChoosePlane(Plane::kAuto, {.request = kMiB / 2}, small).plane,
            Plane::kUnary);
}

TEST(PlaneChoiceTest, SharedMemoryThatIsOffFallsBackAndSaysWhy) {
  const PlaneChoice choice =
      ChoosePlane(Plane::kSharedMemory, {.request = 64 * kMiB}, kRemote);
  EXPECT_EQ(choice.plane, Plane::kStream);
  EXPECT_NE(choice.note, "");
  EXPECT_EQ(ChoosePlane(Plane::kAuto, {.request = kMiB}, kRemote).note, "");
}

TEST(PlaneChoiceTest, WhatIsAskedForByNameIsTaken) {
  EXPECT_EQ(ChoosePlane(Plane::kUnary, {.request = 64 * kMiB}, kLocal).plane,
            Plane::kUnary);
  EXPECT_EQ(ChoosePlane(Plane::kStream, {.request = 1}, kLocal).plane,
            Plane::kStream);
}

}  // namespace
}  // namespace ithaca::client
