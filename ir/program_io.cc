// The file around the body. Integers are little endian:
//   8 magic, u32 version, u64 rank, u32 length of the mesh's text, the text, u64 length of the
//   body, u128 checksum, body.
// The checksum is XXH3-128 of all bytes before it and of the body's own XXH3-128, so it covers the
// whole file.
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

struct Digest {
  uint64_t low, high;
  bool operator==(const Digest&) const = default;
};

Digest DigestOf(std::string_view header, std::string_view body) {
  std::string text(header);
  XXH128_hash_t hash = XXH3_128bits(body.data(), body.size());
  Append(text, hash.low64);
  Append(text, hash.high64);
  hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
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

}  // namespace

std::string SerializeProgram(const Program& program, const std::string& body) {
  std::string mesh = program.mesh.ToString(), out;
  out.reserve(body.size() + mesh.size() + 64);
  out += kMagic;
  Append(out, static_cast<uint32_t>(program.version));
  Append(out, static_cast<uint64_t>(program.rank));
  Append(out, static_cast<uint32_t>(mesh.size()));
  out += mesh;
  Append(out, static_cast<uint64_t>(body.size()));
  Digest checksum = DigestOf(out, body);
  Append(out, checksum.low);
  Append(out, checksum.high);
  return out += body;
}

Program ParseProgram(const std::string& bytes, const std::string& where) {
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
  auto rank = in.Int<uint64_t>("rank");
  std::string_view mesh = in.Take(in.Int<uint32_t>("mesh"), "mesh");
  auto body_size = in.Int<uint64_t>("header");
  std::string_view header = in.Before();
  Digest checksum;
  checksum.low = in.Int<uint64_t>("checksum");
  checksum.high = in.Int<uint64_t>("checksum");
  if (body_size != in.Left()) {
    in.Fail(
        StrCat("the file has ", in.Left(), " bytes after its header, which announces ", body_size));
  }
  std::string_view body = in.Take(body_size, "body");
  if (DigestOf(header, body) != checksum) {
    throw Diagnostic("E3002", ExitCode::kVerification, where,
                     "the checksum is wrong: the file was damaged or changed",
                     "copy the plan again, or compile it again");
  }
  Program program;
  program.mesh = ParseMesh(mesh, where);
  if (rank >= static_cast<uint64_t>(program.mesh.num_ranks())) {
    ProgramBoundsError(where, StrCat("rank ", rank, " of a mesh of ", program.mesh.num_ranks()));
  }
  program.rank = static_cast<int64_t>(rank);
  DecodeBody(body, where, program);
  CheckProgramBounds(program, where);
  return program;
}

}  // namespace shardc
