#include "cli/doctor/probe.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/library_file.h"

namespace ringroad::cli::doctor {
namespace {

int fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

int fail_call(const char* call) { return fail(std::string(call) + ": " + strerrordesc_np(errno)); }

template <typename Function>
bool find(void* library, const char* name, Function*& out) {
  out = reinterpret_cast<Function*>(dlsym(library, name));
  return out != nullptr;
}

std::string device_name(const rdma_cm_id* id) {
  return id->verbs != nullptr && id->verbs->device != nullptr ? id->verbs->device->name
                                                              : "no device";
}

bool parse(const std::string& text, sockaddr_storage& out) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    return true;
  }
  v6->sin6_family = AF_INET6;
  return inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1;
}

}  // namespace

int probe_library(const std::string& library) {
  std::string looked_at;
  const std::string main = library.empty() ? find_library(looked_at) : library;
  if (main.empty()) return fail("no libringroad.so at " + looked_at);
  const std::string problem = library_problem(main);
  if (!problem.empty()) return fail(main + ": " + problem);
  const std::string verbs =
      (std::filesystem::path(main).parent_path() / "libringroad-verbs.so").string();
  if (dlopen(verbs.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return fail(dlerror());
  std::printf("%s loads\n", verbs.c_str());
  return 0;
}

int probe_listen(const std::string& address) {
  sockaddr_storage name{};
  if (!parse(address, name)) return fail("\"" + address + "\" is no address");
  void* library = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(dlerror());
  decltype(rdma_create_event_channel)* create_channel = nullptr;
  decltype(rdma_create_id)* create_id = nullptr;
  decltype(rdma_bind_addr)* bind_addr = nullptr;
  decltype(rdma_listen)* listen_on = nullptr;
  decltype(rdma_destroy_id)* destroy_id = nullptr;
  if (!find(library, "rdma_create_event_channel", create_channel) ||
      !find(library, "rdma_create_id", create_id) || !find(library, "rdma_bind_addr", bind_addr) ||
      !find(library, "rdma_listen", listen_on) || !find(library, "rdma_destroy_id", destroy_id)) {
    return fail(dlerror());
  }
  rdma_event_channel* channel = create_channel();
  if (channel == nullptr) return fail_call("rdma_create_event_channel");
  rdma_cm_id* id = nullptr;
  if (create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0) return fail_call("rdma_create_id");
  if (bind_addr(id, reinterpret_cast<sockaddr*>(&name)) != 0) return fail_call("rdma_bind_addr");
  if (id->verbs == nullptr) return fail("rdma_cm finds no device with this address");
  if (listen_on(id, 1) != 0) return fail_call("rdma_listen");
  std::printf("%s\n", device_name(id).c_str());
  destroy_id(id);
  return 0;
}

}  // namespace ringroad::cli::doctor
