#include "client/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ithaca::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMetadataKey[] = "__metadata__";
constexpr uint64_t kSizeBytes = 8;
// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 64;

constexpr std::pair<const char*, v1::DataType> kTypes[] = {
    {"F32", v1::DATA_TYPE_FLOAT32},
    {"F16", v1::DATA_TYPE_FLOAT16},
    {"BF16", v1::DATA_TYPE_BFLOAT16},
};

v1::DataType DataTypeOf(const std::string& name) {
  for (const auto& [known, dtype] : kTypes) {
    if (name == known) return dtype;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

const char* SafetensorsName(v1::DataType dtype) {
  for (const auto& [name, known] : kTypes) {
    if (dtype == known) return name;
  }
  return "";
}

absl::Status Malformed(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", name, "': ", what));
}

// A non-negative integer that fits int64; JSON's other numbers are refused.
std::optional<int64_t> AsCount(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto count = value.get<uint64_t>();
  if (count > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(count);
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name,
                                            const Json& json,
                                            uint64_t data_bytes) {
  if (!json.is_object()) return Malformed(name, "expected a JSON object");
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto offsets = json.find("data_offsets");
  if (dtype == json.end() || !dtype->is_string()) {
    return Malformed(name, "dtype: expected a string");
  }
  if (shape == json.end() || !shape->is_array() || shape->size() > kMaxRank) {
    return Malformed(name, "shape: expected an array of up to 64 dimensions");
  }
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2) {
    return Malformed(name, "data_offsets: expected [begin, end]");
  }
  SafetensorsEntry entry;
  entry.dtype_name = dtype->get<std::string>();
  entry.dtype = DataTypeOf(entry.dtype_name);
  for (const Json& dimension : *shape) {
    const auto count = AsCount(dimension);
    if (!count.has_value()) {
      return Malformed(name, "shape: a dimension is no count");
    }
    entry.shape.push_back(*count);
  }
  const auto begin = AsCount((*offsets)[0]);
  const auto end = AsCount((*offsets)[1]);
  if (!begin.has_value() || !end.has_value() || *begin > *end ||
      static_cast<uint64_t>(*end) > data_bytes) {
    return Malformed(name, absl::StrCat("data_offsets: expected 0 <= begin <= "
                                        "end <= ",
                                        data_bytes, ", the data's bytes, got ",
                                        offsets->dump()));
  }
  entry.begin = static_cast<uint64_t>(*begin);
  entry.end = static_cast<uint64_t>(*end);
  if (entry.dtype != v1::DATA_TYPE_UNSPECIFIED) {
    const auto expected = DenseBytes(entry.dtype, entry.shape);
    if (!expected.has_value() || *expected != *end - *begin) {
      return Malformed(
          name,
          absl::StrCat("data_offsets: expected ",
                       expected.has_value() ? absl::StrCat(*expected)
                                            : std::string("too many"),
                       " bytes for shape [", absl::StrJoin(entry.shape, ", "),
                       "], got ", *end - *begin));
    }
  }
  return entry;
}

absl::Status ReadBytes(std::ifstream& file, const std::string& path,
                       uint64_t offset, std::span<std::byte> into) {
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(into.data()),
            static_cast<std::streamsize>(into.size()));
  if (!file) {
    return absl::UnavailableError(absl::StrCat(
        path, ": cannot read ", into.size(), " bytes at ", offset));
  }
  return absl::OkStatus();
}

std::string Names(const SafetensorsIndex& index) {
  return absl::StrJoin(index, ", ", [](std::string* out, const auto& named) {
    absl::StrAppend(out, "'", named.first, "'");
  });
}

}  // namespace

absl::StatusOr<SafetensorsIndex> ParseSafetensorsHeader(std::string_view text,
                                                        uint64_t data_bytes) {
  const Json json = Json::parse(text, /*cb=*/nullptr,
                                /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the header is not a JSON object");
  }
  SafetensorsIndex index;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) continue;
    auto entry = ParseEntry(name, value, data_bytes);
    if (!entry.ok()) return entry.status();
    index[name] = *std::move(entry);
  }
  return index;
}

absl::StatusOr<std::vector<Tensor>> ReadSafetensors(
    const std::string& path, const std::vector<std::string>& names) {
  std::error_code error;
  const uint64_t file_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    return absl::NotFoundError(absl::StrCat(
        path, ": ", error ? error.message() : std::strerror(errno)));
  }
  const auto malformed = [&path](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a .safetensors file: ", what));
  };
  uint64_t header_bytes = 0;
  if (file_bytes < kSizeBytes) return malformed("shorter than 8 bytes");
  absl::Status read = ReadBytes(
      file, path, 0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (!read.ok()) return read;
  if (header_bytes > std::min(kMaxHeaderBytes, file_bytes - kSizeBytes)) {
    return malformed(absl::StrCat("a header of ", header_bytes,
                                  " bytes in a file of ", file_bytes));
  }
  std::string header(header_bytes, '\0');
  read = ReadBytes(file, path, kSizeBytes,
                   std::as_writable_bytes(std::span(header)));
  if (!read.ok()) return read;
  const uint64_t data_start = kSizeBytes + header_bytes;
  const auto index = ParseSafetensorsHeader(header, file_bytes - data_start);
  if (!index.ok()) return malformed(index.status().message());

  std::vector<Tensor> tensors;
  for (const std::string& name : names) {
    const auto found = index->find(name);
    if (found == index->end()) {
      return absl::NotFoundError(absl::StrCat(path, ": no tensor '", name,
                                              "'; it has ", Names(*index)));
    }
    const SafetensorsEntry& entry = found->second;
    if (entry.dtype == v1::DATA_TYPE_UNSPECIFIED) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", name,
                       "': expected F32, F16 or BF16, "
                       "got ",
                       entry.dtype_name));
    }
    Tensor tensor(entry.dtype, entry.shape);
    read = ReadBytes(file, path, data_start + entry.begin, tensor.bytes());
    if (!read.ok()) return read;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status WriteSafetensors(
    const std::string& path, const std::map<std::string, TensorView>& tensors) {
  Json header = Json::object();
  uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    if (DenseBytes(tensor.dtype, tensor.shape) !=
        static_cast<int64_t>(tensor.bytes.size())) {
      return Malformed(name, "its bytes do not fit its shape");
    }
    const uint64_t begin = std::exchange(end, end + tensor.bytes.size());
    header[name] = {{"dtype", SafetensorsName(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {begin, end}}};
  }
  std::string text =
      header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // readers map the data aligned
  const uint64_t header_bytes = text.size();

  const std::string unfinished = absl::StrCat(path, ".part");
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&header_bytes), kSizeBytes);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, tensor] : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    std::remove(unfinished.c_str());
    return absl::UnavailableError(
        absl::StrCat("cannot write ", path, ": ", why));
  }
  return absl::OkStatus();
}

}  // namespace ithaca::client
