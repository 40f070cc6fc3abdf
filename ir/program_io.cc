// The file around the body. Integers are little endian:
//   8 magic, u32 version, u64 rank, u32 length of the mesh's text, the text, u64 rank whose file
//   has the body, u64 length of the body, u128 XXH3 of the body, u128 XXH3 of all bytes before it;
//   then the body, in that rank's file.
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "ir/program_body.h"

namespace shardc {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "SHARDCPG";

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr size_t kSumBytes = 16;

std::string SumOf(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  std::string sum;
  Append(sum, hash.low64);
  Append(sum, hash.high64);
  return sum;
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::string_view Take(uint64_t n, const char* what) {
    if (n > bytes_.size() - at_) Fail(StrCat("the file ends inside its ", what));
    std::string_view out = bytes_.substr(at_, n);
    at_ += n;
    return out;
  }
  template <typename T>
  T Int(const char* what) {
    T value;
    std::memcpy(&value, Take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string_view Before() const { return bytes_.substr(0, at_); }
  uint64_t Left() const { return bytes_.size() - at_; }

  [[noreturn]] void Fail(std::string what) const {
    throw Diagnostic("E3001", ExitCode::kVerification, where_, std::move(what),
                     "copy the plan again, or compile it again");
  }

 private:
  std::string_view bytes_;
  const std::string& where_;
  size_t at_ = 0;
};

Mesh ParseMesh(std::string_view text, const std::string& where) {
  try {
    return Mesh::Parse(text);
  } catch (const Diagnostic& d) {
    ProgramBoundsError(where, "mesh: " + d.message());
  }
}

// Of the file of a rank that runs the program.
std::string HeaderOf(const Program& program, int64_t rank, size_t body_size,
                     const std::string& body_sum) {
  const std::string mesh = program.mesh.ToString();
  std::string out(kMagic);
  Append(out, static_cast<uint32_t>(program.version));
  Append(out, static_cast<uint64_t>(rank));
  Append(out, static_cast<uint32_t>(mesh.size()));
  out += mesh;
  Append(out, static_cast<uint64_t>(program.rank));
  Append(out, static_cast<uint64_t>(body_size));
  out += body_sum;
  return out += SumOf(out);
}

}  // namespace

std::string SerializeProgram(const Program& program, const std::string& body) {
  return HeaderOf(program, program.rank, body.size(), SumOf(body)) + body;
}

std::vector<std::string> SerializePrograms(const Program& program, std::span<const int64_t> ranks) {
  const std::string body = SerializeBody(program), sum = SumOf(body);
  std::vector<std::string> files;
  for (const int64_t rank : ranks) {
    files.push_back(HeaderOf(program, rank, body.size(), sum));
    if (rank == program.rank) files.back() += body;
  }
  return files;
}

ProgramFile ParseProgram(const std::string& bytes, const std::string& where) {
  Reader in(bytes, where);
  if (bytes.empty()) in.Fail("the file is empty");
  if (!bytes.starts_with(kMagic)) in.Fail("this is not a program of shardc");
  in.Take(kMagic.size(), "magic");
  auto version = in.Int<uint32_t>("version");
  if (version != static_cast<uint32_t>(kProgramVersion)) {
    throw Diagnostic(
        "E3003", ExitCode::kVerification, where,
        StrCat("a program of version ", version, "; this shardc runs version ", kProgramVersion),
        "compile the plan with this shardc");
  }
  auto expect_sum = [&](std::string_view part, std::string_view sum) {
    if (SumOf(part) == sum) return;
    throw Diagnostic("E3002", ExitCode::kVerification, where,
                     "the checksum is wrong: the file was damaged or changed",
                     "copy the plan again, or compile it again");
  };
  auto rank = in.Int<uint64_t>("rank");
  std::string_view mesh = in.Take(in.Int<uint32_t>("mesh"), "mesh");
  auto body_at = in.Int<uint64_t>("header");
  auto body_size = in.Int<uint64_t>("header");
  const std::string_view body_sum = in.Take(kSumBytes, "header");
  const std::string_view header = in.Before();
  const std::string_view checksum = in.Take(kSumBytes, "checksum");
  const uint64_t announced = body_at == rank ? body_size : 0;
  if (announced != in.Left()) {
    in.Fail(
        StrCat("the file has ", in.Left(), " bytes after its header, which announces ", announced));
  }
  expect_sum(header, checksum);
  ProgramFile file;
  Program& program = file.program;
  program.mesh = ParseMesh(mesh, where);
  for (uint64_t r : {rank, body_at}) {
    if (r < static_cast<uint64_t>(program.mesh.num_ranks())) continue;
    ProgramBoundsError(where, StrCat("rank ", r, " of a mesh of ", program.mesh.num_ranks()));
  }
  program.rank = static_cast<int64_t>(rank);
  file.body_at = static_cast<int64_t>(body_at);
  file.body_sum = body_sum;
  if (body_at != rank) return file;
  const std::string_view body = in.Take(body_size, "body");
  expect_sum(body, body_sum);
  DecodeBody(body, where, program);
  CheckProgramBounds(program, where);
  return file;
}

}  // namespace shardc
