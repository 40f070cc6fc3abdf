#include "ir/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/ir/file_testing.h"
#include "tests/ir/thrown.h"
#include "tests/ir/write_tensors.h"

namespace shardc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IdThrownBy;
using testing::ReadBytes;
using testing::TemporaryFolder;
using testing::TextThrownBy;
using testing::WriteBytes;
using testing::WriteNpy;

// A file as numpy writes it, from the header's text and the data.
std::string Npy(const std::string& header, const std::string& data, int version = 1) {
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  auto length = static_cast<uint32_t>(header.size());
  out.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return out + header + data;
}
std::string Dict(const std::string& descr, const std::string& shape,
                 const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }  \n";
}
template <typename T>
std::string Raw(std::initializer_list<T> values) {
  std::string out;
  for (T v : values) out.append(reinterpret_cast<const char*>(&v), sizeof v);
  return out;
}

class NpyTest : public ::testing::Test {
 protected:
  HostTensor Read(const std::string& bytes) {
    WriteBytes(path_, bytes);
    return ReadNpy(path_);
  }
  std::string Error(const std::string& bytes) {
    return TextThrownBy([&] { Read(bytes); });
  }
  TemporaryFolder folder_;
  std::string path_ = folder_.File("a.npy");
};

TEST_F(NpyTest, RoundTripOfEveryDType) {
  for (DType dtype :
       {DType::kF32, DType::kF16, DType::kF64, DType::kI32, DType::kI64, DType::kBool}) {
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 3}, Shape{2, 0, 5}, Shape(30, 1)}) {
      HostTensor t(dtype, shape);
      for (int64_t i = 0; i < t.num_elements(); ++i)
        t.SetDouble(i, static_cast<double>(i % 2) - 0.0);
      WriteNpy(path_, t);
      EXPECT_EQ(ReadNpy(path_), t) << DTypeName(dtype) << ShapeToString(shape);
      EXPECT_EQ((std::filesystem::file_size(path_) - static_cast<size_t>(t.bytes())) % 64, 0u);
    }
  }
}

TEST_F(NpyTest, WritesWhatNumpyWrites) {
  WriteNpy(path_, HostTensor::Of<float>({2, 1}, {1, 2}));
  std::string bytes = ReadBytes(path_);
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1,), }";
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(bytes.substr(10, header.size()), header);
  EXPECT_EQ(bytes[127], '\n');
  EXPECT_EQ(bytes.substr(128), Raw<float>({1, 2}));
}

TEST_F(NpyTest, Versions) {
  for (int version : {1, 2, 3}) {
    HostTensor t = Read(Npy(Dict("<i4", "(2,)"), Raw<int32_t>({5, -6}), version));
    EXPECT_EQ(t, HostTensor::Of<int32_t>({2}, {5, -6}));
  }
  EXPECT_THAT(Error(Npy(Dict("<i4", "()"), Raw<int32_t>({5}), 4)), HasSubstr("version 4"));
  EXPECT_THAT(Error(Npy(Dict("<i4", "()"), Raw<int32_t>({5}), 200)), HasSubstr("version 200"));
}

TEST_F(NpyTest, OtherIntegersBecomeI64) {
  using I64s = std::vector<int64_t>;
  auto expect = [&](const std::string& descr, const std::string& data, const I64s& values) {
    EXPECT_EQ(Read(Npy(Dict(descr, "(2,)"), data)), HostTensor::Of<int64_t>({2}, values)) << descr;
  };
  expect("|i1", Raw<int8_t>({-128, 127}), {-128, 127});
  expect("|u1", Raw<uint8_t>({0, 255}), {0, 255});
  expect("<i2", Raw<int16_t>({-32768, 9}), {-32768, 9});
  expect("<u2", Raw<uint16_t>({1, 65535}), {1, 65535});
  expect("<u4", Raw<uint32_t>({1, 4294967295u}), {1, 4294967295});
  expect("<u8", Raw<uint64_t>({1, 9223372036854775807u}), {1, 9223372036854775807});
  EXPECT_THAT(Error(Npy(Dict("<u8", "(1,)"), Raw<uint64_t>({1ull << 63}))),
              AllOf(HasSubstr("E5101"), HasSubstr("9223372036854775808")));
}

TEST_F(NpyTest, BoolsAreZeroOrOne) {
  HostTensor t = Read(Npy(Dict("|b1", "(3,)"), std::string("\x00\x01\x02", 3)));
  EXPECT_EQ(t, HostTensor::Of<bool>({3}, {false, true, true}));
}

TEST_F(NpyTest, RefusesWithAdvice) {
  std::string data(64, '\0');
  EXPECT_THAT(Error(Npy(Dict("<f4", "(2, 2)", "True"), data)),
              AllOf(HasSubstr("E5101"), HasSubstr("np.ascontiguousarray")));
  EXPECT_THAT(Error(Npy(Dict(">f4", "(2, 2)"), data)),
              HasSubstr("convert them with .astype('<f4')"));
  EXPECT_THAT(Error(Npy(Dict("<c8", "(2, 2)"), data)), HasSubstr("'<c8'"));
  EXPECT_THAT(Error(Npy(Dict(">c8", "(2, 2)"), data)), HasSubstr("of a kind that is not read"));
  EXPECT_THAT(
      Error(Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", data)),
      HasSubstr("records"));
  EXPECT_THAT(Error(Npy(Dict("<f4", "(5, 4)"), data)), HasSubstr("needs 80 bytes, and 64"));
}

TEST_F(NpyTest, RefusesMalformedHeaders) {
  std::string data(64, '\0');
  for (const char* header :
       {"", "{", "{}", "{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1], }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x"}) {
    EXPECT_THAT(Error(Npy(header, data)), HasSubstr("E5101")) << header;
  }
}

TEST_F(NpyTest, EveryTruncationIsRefused) {
  for (int version : {1, 2}) {
    std::string good = Npy(Dict("<i2", "(3,)"), Raw<int16_t>({1, 2, 3}), version);
    for (size_t n = 0; n < good.size(); ++n) {
      EXPECT_THAT(Error(good.substr(0, n)), HasSubstr("E5101")) << n;
    }
    EXPECT_EQ(Read(good).num_elements(), 3);
  }
}

TEST_F(NpyTest, FilesThatAreNotThere) {
  EXPECT_EQ(IdThrownBy([&] { ReadNpy(folder_.File("none.npy")); }), "E5001");
  EXPECT_EQ(IdThrownBy([&] { ReadNpy(folder_.path()); }), "E5001");
}

}  // namespace
}  // namespace shardc
