package api

import (
	"encoding/json"
	"fmt"
	"io"
)

// decode reads a JSON answer of bounded size.
func decode[T any](r io.Reader) (*T, error) {
	v := new(T)
	if err := json.NewDecoder(io.LimitReader(r, maxAnswer)).Decode(v); err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	return v, nil
}
