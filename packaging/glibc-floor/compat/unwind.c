// Since glibc 2.35: what the unwinder of libgcc asks for each frame when an exception is thrown.
#include <dlfcn.h>
#include <features.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#if __GLIBC_PREREQ(2, 35)  // an older compiler asks dl_iterate_phdr() by itself

struct search {
  uintptr_t pc;
  struct dl_find_object* found;
};

// Returns 0 to go on, 1 for found, -1 where the object has no table of frames.
static int look(struct dl_phdr_info* object, size_t size, void* argument) {
  (void)size;
  const struct search* search = argument;
  uintptr_t start = UINTPTR_MAX;
  uintptr_t end = 0;
  const ElfW(Phdr)* frames = NULL;
  int has_pc = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    if (part->p_type == PT_GNU_EH_FRAME) frames = part;
    if (part->p_type != PT_LOAD) continue;
    const uintptr_t from = object->dlpi_addr + part->p_vaddr;
    const uintptr_t to = from + part->p_memsz;
    if (from < start) start = from;
    if (to > end) end = to;
    if (search->pc >= from && search->pc < to) has_pc = 1;
  }
  if (!has_pc) return 0;
  if (frames == NULL) return -1;
  // libgcc takes nothing but these on x86-64 and aarch64.
  *search->found = (struct dl_find_object){
      .dlfo_map_start = (void*)start,
      .dlfo_map_end = (void*)end,
      .dlfo_eh_frame = (void*)(object->dlpi_addr + frames->p_vaddr),
  };
  return 1;
}

int _dl_find_object(void* pc, struct dl_find_object* found) {
  struct search search = {(uintptr_t)pc, found};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

#endif
