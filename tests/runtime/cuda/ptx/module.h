// PTX as nvcc writes it, read for execution on the CPU (machine.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::ptx {

struct Instruction;
struct Warp;
// Executes the instruction for the warp's current lanes.
using Step = void (*)(const Instruction&, Warp&);

enum class Kind : uint8_t {
  kStep,      // of each lane by itself
  kTogether,  // the lanes exchange something: all that have not returned must be there
  kBranch,
  kReturn,
  kBarrier
};

// What an instruction does to memory, and which memory.
enum class Access : uint8_t { kNone, kLoad, kStore, kAtomic, kCopy };  // kCopy: to shared memory
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

// Operands are slots: a register, a constant or the base of an address. Vectors stand element by
// element.
struct Instruction {
  std::string_view opcode;  // "add.rn.f32"
  int line = 0;             // in the module
  int guard = -1;           // predicate; -1: always
  bool unless = false;      // where the predicate is false
  std::array<int32_t, 16> slot = {};
  int slots = 0;
  int results = 0;     // slots of the first operand
  int64_t offset = 0;  // of the address, if there is one
  int target = -1;     // of a branch: place in Kernel::code
  Kind kind = Kind::kStep;
  bool aligned = false;  // with kTogether: none of the warp's lanes may have returned
  Step step = nullptr;
  size_t bytes = 0;  // of a memory access, all elements together
  Access access = Access::kNone;
  Space space = Space::kGeneric;
  // Of an access's address, before the offset.
  int32_t address() const {
    return slot[access == Access::kStore ? 0 : static_cast<size_t>(results)];  // kCopy: the source
  }
};

// Registers of which each lane has its own value from the start.
enum Special { kTidX, kNTidX, kCtaIdX, kNCtaIdX, kLaneId, kNoSpecial };

struct Param {
  int64_t offset = 0, bytes = 0;
};

struct Kernel {
  std::string name;
  std::vector<Param> params;
  int64_t param_bytes = 0;
  int64_t most_threads = 1024;  // of a block (.maxntid)
  int64_t shared_bytes = 0;     // static; dynamic shared memory begins there
  int64_t local_bytes = 0;      // of a lane
  int slots = 0;
  std::map<int, uint64_t> constants;            // by slot; shared memory as offsets in its window
  std::array<int, kNoSpecial> special = {};     // slots; -1: not used
  std::map<int, int64_t> params_at, locals_at;  // slots that hold addresses: offsets
  std::vector<Instruction> code;                // of which the last returns
};

// Shared memory begins here in its window, so that a null pointer is none of it.
inline constexpr int64_t kSharedWindow = 1024;

class Module {
 public:
  // Throws std::runtime_error with the line for what it does not know.
  explicit Module(std::string text);
  // Null when there is none of that name. Parsed when first asked for.
  const Kernel* Find(const std::string& name);
  std::vector<std::string> names() const;
  // Variables in global and constant memory.
  const std::map<std::string, std::vector<std::byte>, std::less<>>& variables() const {
    return variables_;
  }

 private:
  friend class BodyParser;
  struct Function {
    std::string_view results, params, directives, body;
    int line = 0;  // where the body begins
  };
  std::string text_;
  std::map<std::string, Function, std::less<>> entries_, functions_;
  std::map<std::string, std::pair<int64_t, int64_t>, std::less<>> shared_;  // size, alignment
  std::map<std::string, std::vector<std::byte>, std::less<>> variables_;
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels_;
};

}  // namespace shardc::ptx
