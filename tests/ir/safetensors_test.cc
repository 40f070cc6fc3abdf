#include "ir/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "ir/output_file.h"
#include "tests/ir/file_testing.h"
#include "tests/ir/thrown.h"
#include "tests/ir/write_tensors.h"

namespace shardc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IdThrownBy;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Pair;
using testing::ReadBytes;
using testing::TemporaryFolder;
using testing::TextThrownBy;
using ::testing::UnorderedElementsAre;
using testing::WriteBytes;
using testing::WriteSafetensors;

std::string File(const std::string& header, const std::string& data = {}) {
  uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsFile Open(const std::string& bytes) {
    WriteBytes(path_, bytes);
    return SafetensorsFile(path_);
  }
  std::string Error(const std::string& bytes) {
    return TextThrownBy([&] { Open(bytes); });
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& e : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(e.path().filename().string());
    }
    return names;
  }
  TemporaryFolder folder_;
  std::string path_ = folder_.File("a.safetensors");
};

TEST_F(SafetensorsTest, RoundTripOfEveryDType) {
  std::map<std::string, HostTensor> tensors;
  for (int d = 0; d < kNumDTypes; ++d) {
    auto dtype = static_cast<DType>(d);
    HostTensor t(dtype, {2, 3});
    for (int64_t i = 0; i < 6; ++i) t.SetDouble(i, static_cast<double>(i % 2));
    tensors["t." + std::string(DTypeName(dtype))] = t;
  }
  tensors["scalar"] = HostTensor::Scalar(-0.0f);
  tensors["empty"] = HostTensor(DType::kF64, {4, 0});
  tensors["q\"uote \xc3\xa9"] = HostTensor::Scalar<int64_t>(-7);
  WriteSafetensors(path_, tensors);
  SafetensorsFile file(path_);
  EXPECT_EQ(file.entries().size(), tensors.size());
  for (const auto& [name, t] : tensors) {
    ASSERT_TRUE(file.Has(name)) << name;
    EXPECT_EQ(file.Read(name), t) << name;
    EXPECT_EQ(file.Data(name).size(), static_cast<size_t>(t.bytes()));
  }
  EXPECT_FALSE(file.Has("none"));
}

std::string HiddenName(const std::string& of, int process) {
  return std::filesystem::path(HiddenBeside(of, process)).filename().string();
}

TEST_F(SafetensorsTest, WriterInPiecesWithMetadata) {
  SafetensorsWriter writer(path_, {{"z", DType::kI32, {3}}, {"a", DType::kF64, {1}}},
                           {{"format", "pt"}});
  HostTensor z = HostTensor::Of<int32_t>({3}, {1, 2, 3}), a = HostTensor::Of<double>({1}, {0.5});
  std::span<const std::byte> bytes(z.raw(), 12);
  writer.Write(bytes.first(5));
  writer.Write(bytes.subspan(5));
  writer.Write({a.raw(), 8});
  EXPECT_THAT(Names(), ElementsAre(HiddenName("a.safetensors", getpid())));
  writer.Finish();
  EXPECT_THAT(Names(), ElementsAre("a.safetensors"));
  SafetensorsFile file(path_);
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt")));
  EXPECT_THAT(file.entries(), ElementsAre(Key("a"), Key("z")));
  EXPECT_EQ(file.Read("z"), z);
  EXPECT_EQ(file.Read("a"), a);
  // Data start at a multiple of 8, in the order announced.
  EXPECT_EQ(file.entries().at("z").offset % 8, 0);
  EXPECT_EQ(file.entries().at("a").offset, file.entries().at("z").offset + 12);
}

TEST_F(SafetensorsTest, NoTensorIsCalledMetadata) {
  EXPECT_EQ(IdThrownBy([&] {
              SafetensorsWriter(path_, {{"__metadata__", DType::kI32, {3}}});
            }),
            "E5104");
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(SafetensorsTest, UnfinishedLeavesNothing) {
  WriteBytes(path_, "old");
  {
    SafetensorsWriter writer(path_, {{"z", DType::kI32, {3}}});
    EXPECT_EQ(Names().size(), 2u);
    EXPECT_THROW(writer.Finish(), InternalError);
  }
  EXPECT_THAT(Names(), ElementsAre("a.safetensors"));
  EXPECT_EQ(ReadBytes(path_), "old");
}

TEST_F(SafetensorsTest, WriteErrors) {
  std::map<std::string, HostTensor> tensors{{"a", HostTensor(DType::kF32, {1 << 20})}};
  EXPECT_EQ(IdThrownBy([&] { WriteSafetensors(folder_.File("no/such/file"), tensors); }), "E5003");
  // The file-size limit stands for a disk that refuses more bytes.
  rlimit old{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  small = {4096, old.rlim_max};
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string error = TextThrownBy([&] { WriteSafetensors(path_, tensors); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, AllOf(HasSubstr("E5003"), HasSubstr(path_)));
  EXPECT_TRUE(Names().empty());
}

TEST_F(SafetensorsTest, WhatAKilledWriterLeftGoes) {
  constexpr int kGone = 99999999;  // no process has a number that large
  const std::string elsewhere = ".a.safetensors.tmp-0123abcd-99999999";
  const std::string running = HiddenName("a.safetensors", 1);
  const std::string of_others = HiddenName("b.safetensors", kGone);
  for (const std::string& name :
       {HiddenName("a.safetensors", kGone), elsewhere, running, of_others}) {
    WriteBytes(folder_.File(name), "part");
  }
  WriteSafetensors(path_, {{"a", HostTensor(DType::kF32, {4})}});
  EXPECT_THAT(Names(), UnorderedElementsAre("a.safetensors", elsewhere, running, of_others));
}

TEST_F(SafetensorsTest, FullDisk) {
  // A link named as the temporary file: the writer opens it and finds /dev/full behind it.
  std::string hidden = HiddenBeside(path_);
  std::filesystem::create_symlink("/dev/full", hidden);
  std::map<std::string, HostTensor> tensors{{"a", HostTensor(DType::kF32, {4})}};
  EXPECT_EQ(IdThrownBy([&] { WriteSafetensors(path_, tensors); }), "E5004");
  EXPECT_TRUE(Names().empty());
}

TEST_F(SafetensorsTest, ForeignDTypesAreRefusedAtRead) {
  SafetensorsFile file = Open(File(R"({"mask":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
      "w":{"dtype":"I32","shape":[],"data_offsets":[2,6]}})",
                                   std::string("\1\1\5\0\0\0", 6)));
  EXPECT_EQ(file.Read("w"), HostTensor::Scalar<int32_t>(5));  // at an odd place in the file
  EXPECT_FALSE(file.Has("mask"));
  EXPECT_THAT(TextThrownBy([&] { file.Read("mask"); }), AllOf(HasSubstr("E5103"), HasSubstr("U8")));
}

TEST_F(SafetensorsTest, NearNames) {
  WriteSafetensors(path_, {{"h.0.attn.weight", HostTensor(DType::kF32, {1})}});
  SafetensorsFile file(path_);
  EXPECT_THAT(TextThrownBy([&] { file.Read("h.0.attn.wieght"); }),
              AllOf(HasSubstr("E5103"), HasSubstr("did you mean 'h.0.attn.weight'?")));
}

TEST_F(SafetensorsTest, MalformedHeaders) {
  std::string data(16, '\0');
  auto tensor = [](const std::string& rest) { return "{\"a\":{" + rest + "}}"; };
  auto floats = [&](const std::string& shape, const std::string& offsets) {
    return tensor("\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
  };
  ASSERT_EQ(Error(File(floats("[2,2]", "[0,16]"), data)), "none");
  ASSERT_EQ(Error(File(floats("[2,2]", "[0,16]") + "   ", data)), "none");
  for (const std::string& header :
       {std::string(),
        std::string("[]"),
        std::string("{"),
        std::string("{\"a\":1}"),
        std::string("{\"__metadata__\":{\"a\":1}}"),
        std::string("{\"__metadata__\":[]}"),
        std::string("{\"\xff\":{}}"),
        std::string(100000, '['),
        tensor("\"shape\":[1],\"data_offsets\":[0,4]"),
        tensor("\"dtype\":\"F32\",\"data_offsets\":[0,4]"),
        tensor("\"dtype\":\"F32\",\"shape\":[1]"),
        tensor("\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]"),
        tensor("\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]"),
        tensor("\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]"),
        floats("[2,2]", "[0,12]"),
        floats("[2,2]", "[0,17]"),
        floats("[2,2]", "[4,20]"),
        floats("[2,2]", "[16,0]"),
        floats("[2,2]", "[0]"),
        floats("[2,2]", "[0,16,16]"),
        floats("[2,2]", "[-1,15]"),
        floats("[2,2]", "[0,16.0]"),
        floats("[2,-2]", "[0,16]"),
        floats("[2,\"2\"]", "[0,16]"),
        floats("4", "[0,16]"),
        floats("[" + std::string(1000000, '[') + std::string(1000000, ']') + "]", "[0,16]"),
        floats("[4294967296,4294967296]", "[0,0]"),
        floats("[1]", "[18446744073709551612,0]"),
        floats("[1]", "[0,99999999999999999999]"),
        "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}" +
            data}) {
    EXPECT_THAT(Error(File(header, data)), HasSubstr("E5102")) << header.substr(0, 200);
  }
}

TEST_F(SafetensorsTest, OverlapsAndDuplicates) {
  auto two = [](const char* second, const char* offsets) {
    return StrCat("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"", second,
                  "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":", offsets, "}}");
  };
  std::string data(16, '\0');
  EXPECT_EQ(Error(File(two("b", "[8,16]"), data)), "none");
  EXPECT_THAT(Error(File(two("b", "[4,12]"), data)), HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(Error(File(two("b", "[0,8]"), data)), HasSubstr("overlap"));
  EXPECT_THAT(Error(File(two("a", "[8,16]"), data)), HasSubstr("'a' appears twice"));
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  WriteSafetensors(path_,
                   {{"a", HostTensor(DType::kI64, {2})}, {"b", HostTensor(DType::kBool, {3})}});
  std::string good = ReadBytes(path_);
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_THAT(Error(good.substr(0, n)), HasSubstr("E5102")) << n;
  }
}

TEST_F(SafetensorsTest, HugeHeadersAreRefusedUnread) {
  std::string bytes = File("{}");
  bytes[5] = 1;
  EXPECT_THAT(Error(bytes), HasSubstr("E5102"));
  // A zip archive, as torch.save writes.
  EXPECT_THAT(Error("PK\3\4 and more"), HasSubstr("write one with safetensors.torch.save_file"));
}

TEST_F(SafetensorsTest, FilesThatAreNotThere) {
  EXPECT_EQ(IdThrownBy([&] { SafetensorsFile(folder_.File("none")); }), "E5001");
  EXPECT_EQ(IdThrownBy([&] { SafetensorsFile file(folder_.path()); }), "E5001");
}

}  // namespace
}  // namespace shardc
