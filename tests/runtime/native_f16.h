// The compiler's own f16, to compare with.
#pragma once

namespace shardc {

#if defined(__aarch64__)
using NativeF16 = __fp16;  // gcc 12 has no other there
#else
using NativeF16 = _Float16;
#endif

}  // namespace shardc
