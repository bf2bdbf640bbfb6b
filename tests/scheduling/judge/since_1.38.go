//go:build release38

package main

import (
	"context"

	"k8s.io/apimachinery/pkg/util/sets"
	draapi "k8s.io/dynamic-resource-allocation/api"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	resourceapi "k8s.io/api/resource/v1"
)

// On by default, in 1.37 only with --min-compatibility-version=1.37.
func init() { features.FractionalCapacityRange = true }

func newAllocator(ctx context.Context, each allocationCase) (structured.Allocator, error) {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.DeviceID](),
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
			state.AllocatedSharedDeviceIDs.Insert(id)
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	slices := []*draapi.ResourceSlice{}
	for _, slice := range each.Slices {
		converted := &draapi.ResourceSlice{}
		if err := draapi.Convert_v1_ResourceSlice_To_api_ResourceSlice(slice, converted, nil); err != nil {
			return nil, err
		}
		slices = append(slices, converted)
	}
	return structured.NewAllocator(ctx, features, state, classes(each.Classes), slices, cel.NewCache(100, celFeatures))
}

func deviceMatches(ctx context.Context, compiled cel.CompilationResult, each selectorCase) (bool, error) {
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: each.Driver, Devices: []resourceapi.Device{each.Device},
	}}
	converted := &draapi.ResourceSlice{}
	if err := draapi.Convert_v1_ResourceSlice_To_api_ResourceSlice(slice, converted, nil); err != nil {
		return false, err
	}
	device := converted.Spec.Devices[0]
	matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver:                   each.Driver,
		AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes:               device.Attributes,
		Capacity:                 device.Capacity,
		LookupUniqueString:       converted.LookupUniqueString,
	})
	return matches, err
}
