//go:build !release36

package main

func init() { features.FractionalCapacityRange = true }
