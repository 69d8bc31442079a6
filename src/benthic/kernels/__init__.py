"""Operations on tensors: one folder an operation, each a door, a meaning and, where it pays, a faster twin."""
