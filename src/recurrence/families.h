// The table of families: one row each, read by validation and explain.
#pragma once

#include "recurrence/problem.h"

namespace linattn {

struct FamilyRow {
  Family family;
  const char* name;
  Update update;
  bool gates[4];  // indexed by Gate: none, head_constant, head, channel
  bool raw_softplus, raw_bounded;
  bool beta_logit;  // in-kernel sigmoid
  bool qk_norm;
};

inline constexpr FamilyRow kFamilies[] = {
    {Family::kda, "kda", Update::delta, {false, false, false, true}, true, true, true, true},
    {Family::gdn, "gdn", Update::delta, {true, false, true, true}, true, false, true, true},
    {Family::delta, "delta", Update::delta, {true, false, false, false}, false, false, false, true},
    {Family::gla, "gla", Update::additive, {true, false, false, true}, false, false, false, false},
    {Family::simple_gla,
     "simple_gla",
     Update::additive,
     {true, true, true, false},
     false,
     false,
     false,
     false},
    {Family::lightning,
     "lightning",
     Update::additive,
     {false, true, false, false},
     false,
     false,
     false,
     false},
};

inline const FamilyRow* find_family(int32_t family) {
  for (const FamilyRow& row : kFamilies)
    if (static_cast<int32_t>(row.family) == family) return &row;
  return nullptr;
}

inline constexpr const char* kGateNames[] = {"none", "head_constant", "head", "channel"};

}  // namespace linattn
