//go:build !release38

package main

import (
	"context"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

func newAllocator(ctx context.Context, each allocationCase) (structured.Allocator, error) {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range each.Held {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if ptr.Deref(result.AdminAccess, false) {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return structured.NewAllocator(ctx, features, state, classes(each.Classes), each.Slices, cel.NewCache(100, celFeatures))
}

func deviceMatches(ctx context.Context, compiled cel.CompilationResult, each selectorCase) (bool, error) {
	matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver:                   each.Driver,
		AllowMultipleAllocations: each.Device.AllowMultipleAllocations,
		Attributes:               each.Device.Attributes,
		Capacity:                 each.Device.Capacity,
	})
	return matches, err
}
