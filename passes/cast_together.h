// Casts of parameters that run one after the other.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace shardc {

// The most that casts which are brought together give, in bytes of a rank: they are held until they
// are read. A GPU reads and writes as much in some 25 us, beside which a launch is little. With 64
// MiB a rank of GPT-2 124M under ZeRO 3 (dp=4) would hold 18 MiB more at its peak.
inline constexpr int64_t kMostCastTogether = int64_t{32} << 20;

// On the lowered and ordered graph: brings casts of parameters, which can run at any time, behind
// the first of them, as many of one stage, phase and microbatch as give `most` bytes together; then
// begins anew. A backend can do neighbours in one launch. Changes the order alone.
void CastTogether(Graph& graph, int64_t most = kMostCastTogether);

}  // namespace shardc
