#include "cpu/states.h"

#include <algorithm>
#include <cstring>

namespace linattn::cpu {

StatePlace state_place(const StateView& view, const void* data, int64_t n, int64_t row,
                       int64_t head, int64_t column, int64_t columns) {
  const int64_t offset = n * view.n + row * view.r + head * view.h + column * view.v;
  return {&view, element_at(const_cast<void*>(data), view.type, offset), column, columns};
}

// V-first states go through bands of kLanes rows of V, so that both sides move whole vectors.
void load_state(const StatePlace& place, int64_t dim_k, float* s, int64_t ld, float* work) {
  if (place.data == nullptr) {
    for (int64_t i = 0; i < dim_k; ++i) std::fill_n(s + i * ld, padded(place.columns), 0.0f);
    return;
  }
  const Kernels& f = kernels();
  const StateView& view = *place.view;
  const Element type = element(view.type);
  if (view.v == 1 || view.k != 1) {
    f.load_rows(place.data, type, view.k, view.v, dim_k, place.columns, s, ld);
    return;
  }
  for (int64_t v = 0; v < place.columns; v += kLanes) {
    const int64_t rows = std::min(kLanes, place.columns - v);
    f.load_rows(element_at(place.data, view.type, v * view.v), type, view.v, 1, rows, dim_k, work,
                leading(dim_k));
    f.transpose(work, leading(dim_k), rows, dim_k, s + v, ld);
  }
}

void store_state(const StatePlace& place, int64_t dim_k, const float* s, int64_t ld, float* work) {
  if (place.data == nullptr) return;
  const Kernels& f = kernels();
  const StateView& view = *place.view;
  const Element type = element(view.type);
  if (view.v == 1 || view.k != 1) {
    f.store_rows(s, ld, dim_k, place.columns, place.data, type, view.k, view.v);
    return;
  }
  for (int64_t v = 0; v < place.columns; v += kLanes) {
    const int64_t rows = std::min(kLanes, place.columns - v);
    f.transpose(s + v, ld, dim_k, rows, work, leading(dim_k));
    f.store_rows(work, leading(dim_k), rows, dim_k, element_at(place.data, view.type, v * view.v),
                 type, view.v, 1);
  }
}

void pass_state(const StatePlace& from, const StatePlace& to, int64_t dim_k, float* s, int64_t ld,
                float* work) {
  if (to.data == nullptr || to.data == from.data) return;
  if (from.data == nullptr || from.view->type != to.view->type) {
    load_state(from, dim_k, s, ld, work);
    store_state(to, dim_k, s, ld, work);
    return;
  }
  const Type type = to.view->type;
  const size_t size = static_cast<size_t>(size_of(type));
  for (int64_t k = 0; k < dim_k; ++k)
    for (int64_t v = 0; v < to.columns; ++v)
      std::memcpy(element_at(to.data, type, k * to.view->k + v * to.view->v),
                  element_at(from.data, type, k * from.view->k + v * from.view->v), size);
}

}  // namespace linattn::cpu
