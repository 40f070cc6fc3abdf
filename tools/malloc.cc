#include "tools/malloc.h"

#include <cstddef>

// jemalloc's: it reads the first when it starts. Without it neither is more than a name.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "narenas:1,tcache:false";
[[gnu::weak]] int mallctl(const char* name, void* old_value, size_t* old_size, void* new_value,
                          size_t new_size);
}

namespace shardc {

void CacheFreedMemory() {
  bool on = true;
  if (mallctl) mallctl("thread.tcache.enabled", nullptr, nullptr, &on, sizeof(on));
}

}  // namespace shardc
