#include "client/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

namespace ithaca::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TempPath(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

// A file as its parts say, however wrong.
std::string WriteFile(const std::string& name, uint64_t header_bytes,
                      const std::string& rest) {
  std::string path = TempPath(name);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), 8);
  file << rest;
  return path;
}

std::string WriteFile(const std::string& name, const std::string& header,
                      const std::string& data) {
  return WriteFile(name, header.size(), header + data);
}

TEST(SafetensorsTest, WhatIsWrittenIsRead) {
  Tensor query(v1::DATA_TYPE_BFLOAT16, {1, 3, 2, 4});
  Tensor key(v1::DATA_TYPE_FLOAT32, {5});
  Tensor scalar(v1::DATA_TYPE_FLOAT16, {});
  std::memset(query.bytes().data(), 0x3f, query.bytes().size());
  std::memset(key.bytes().data(), 0x11, key.bytes().size());
  std::memset(scalar.bytes().data(), 0x22, scalar.bytes().size());
  const std::string path = TempPath("round.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, {{"query", query.view()},
                                      {"key", key.view()},
                                      {"scalar", scalar.view()}})
                  .ok());
  const auto read = ReadSafetensors(path, {"key", "query", "scalar"});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)[0].dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_THAT((*read)[0].shape(), ElementsAre(5));
  EXPECT_EQ((*read)[0].bytes()[7], std::byte{0x11});
  EXPECT_EQ((*read)[1].dtype(), v1::DATA_TYPE_BFLOAT16);
  EXPECT_THAT((*read)[1].shape(), ElementsAre(1, 3, 2, 4));
  EXPECT_EQ((*read)[1].bytes()[0], std::byte{0x3f});
  EXPECT_EQ((*read)[2].bytes().size(), 2u);
}

TEST(SafetensorsTest, FileOfAnotherWriterIsRead) {
  const std::string path =
      WriteFile("other.safetensors",
                R"({"__metadata__":{"format":"pt"},)"
                R"("b":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},)"
                R"("a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}   )",
                "abcd12345678");
  const auto read = ReadSafetensors(path, {"a"});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)[0].bytes()[3], std::byte{'d'});
}

TEST(SafetensorsTest, MissingTensorNamesThoseThatAreThere) {
  const std::string path = WriteFile(
      "missing.safetensors",
      R"({"q":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", "ab");
  const auto read = ReadSafetensors(path, {"query"});
  EXPECT_EQ(read.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(read.status().message(), HasSubstr("it has 'q'"));
}

TEST(SafetensorsTest, DtypeThatTheApiDoesNotCarryIsRefused) {
  const std::string path =
      WriteFile("i64.safetensors",
                R"({"query":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})",
                "12345678");
  const auto read = ReadSafetensors(path, {"query"});
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(read.status().message(), HasSubstr("got I64"));
}

TEST(SafetensorsTest, MissingFileIsNotFound) {
  EXPECT_EQ(ReadSafetensors("/nonexistent/x.safetensors", {}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, HeaderLargerThanTheFileIsRefusedBeforeAnyAllocation) {
  for (const uint64_t size :
       {uint64_t{3}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    const std::string path = WriteFile("huge.safetensors", size, "{}");
    EXPECT_EQ(ReadSafetensors(path, {}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << size;
  }
  const std::string path = TempPath("stub.safetensors");
  std::ofstream(path) << "1234567";
  EXPECT_EQ(ReadSafetensors(path, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, DirectoryIsNoFile) {
  EXPECT_FALSE(ReadSafetensors(::testing::TempDir(), {}).ok());
}

class MalformedHeaderTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MalformedHeaderTest, IsRefused) {
  const auto index = ParseSafetensorsHeader(GetParam(), 16);
  EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(
    Headers, MalformedHeaderTest,
    ::testing::Values(
        "", "[]", "{", "null", "{\"a\":1}", "{\"a\":{}}",
        R"({"a":{"dtype":1,"shape":[4],"data_offsets":[0,16]}})",
        R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,16]}})",
        R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}})",
        R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,"16"]}})",
        R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[4,20]}})",
        R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})",
        R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[-16,0]}})",
        R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})",
        R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})",
        R"({"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}})",
        // 2^66 bytes, 0 modulo 2^64.
        R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)"
        R"("data_offsets":[0,0]}})",
        R"({"a":{"dtype":"F32","shape":[18446744073709551615],)"
        R"("data_offsets":[0,0]}})",
        R"({"a":{"dtype":"F32","shape":[99999999999999999999],)"
        R"("data_offsets":[0,0]}})",
        R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,17]}})"));

TEST(SafetensorsTest, BytesThatDoNotFitTheShapeAreNotWritten) {
  const std::byte bytes[3] = {};
  const std::string path = TempPath("unfit.safetensors");
  const auto status = WriteSafetensors(
      path,
      {{"a", {.dtype = v1::DATA_TYPE_FLOAT16, .shape = {2}, .bytes = bytes}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::ifstream(path).good());
}

TEST(SafetensorsTest, UnwritablePathIsAnError) {
  EXPECT_EQ(WriteSafetensors("/nonexistent/a.safetensors", {}).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ithaca::client
