// Runs compiled packages without holding Python's interpreter lock, so that a step and a decode can
// overlap: an operator call gives the lock back, the loader's own Python binding does not.
// Built once per machine by packages.py; without it packages still run, one at a time.

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/library.h>

namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;

std::mutex guard;
std::vector<std::unique_ptr<Loader>> packages;  // never shrinks: packages live with the process

int64_t load(const std::string& path) {
  auto package = std::make_unique<Loader>(path, "model", false, 1, -1);
  const std::lock_guard<std::mutex> lock(guard);
  packages.push_back(std::move(package));
  return static_cast<int64_t>(packages.size()) - 1;
}

std::vector<at::Tensor> run(int64_t package, const std::vector<at::Tensor>& inputs) {
  Loader* loader = nullptr;
  {
    const std::lock_guard<std::mutex> lock(guard);
    loader = packages.at(package).get();
  }
  return loader->run(inputs);
}

}  // namespace

TORCH_LIBRARY(rt_drama3, library) {
  library.def("load(str path) -> int", load);
  library.def("run(int package, Tensor[] inputs) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(rt_drama3, CompositeExplicitAutograd, library) {
  library.impl("run", run);
}
